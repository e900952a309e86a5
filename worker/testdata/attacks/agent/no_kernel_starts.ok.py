import site

assert site.ENABLE_USER_SITE is not None

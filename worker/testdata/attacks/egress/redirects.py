"""An allowed host redirects to what is not allowed. The proxy follows nothing: what a program follows is a request of its own, and is checked."""
# network: allowlist
# allow: *.good.test

import os
import urllib.error
import urllib.parse
import urllib.request

VICTIM = os.environ["VICTIM"]
for to in (
    f"http://{VICTIM}/", f"http://{VICTIM}:443/", "http://bare.wide.test/", "//bare.wide.test/", "http://victim.good.test/", "http://169.254.169.254/latest/meta-data/", "http://[::1]/",
    "http://metadata.good.test/", "http://localhost/", "https://bare.wide.test/", f"https://{VICTIM}/",
):
    try:
        with urllib.request.urlopen("http://api.good.test/redirect?to=" + urllib.parse.quote(to, safe=""), timeout=30) as answer:
            raise AssertionError((to, answer.geturl(), answer.read()))
    except urllib.error.HTTPError as e:
        assert e.code == 403, (to, e.code)
    except urllib.error.URLError as e:
        assert "403" in str(e) or to in ("http://localhost/", "http://[::1]/"), (to, e)  # not by the proxy, and nobody listens there
for to in ("file:///etc/passwd", "ftp://api.good.test/", "gopher://api.good.test/"):
    try:
        urllib.request.urlopen("http://api.good.test/redirect?to=" + urllib.parse.quote(to, safe=""), timeout=30)
        raise AssertionError(to)
    except OSError:
        pass

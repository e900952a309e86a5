assert get_ipython() is not None

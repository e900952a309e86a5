import urllib.error
import urllib.request

try:
    urllib.request.urlopen("http://127.0.0.1:3141/pypi/simple/", timeout=30)
    raise AssertionError("it lists all projects")
except urllib.error.HTTPError as e:
    assert e.code == 404 and b"this is a package index" in e.read()

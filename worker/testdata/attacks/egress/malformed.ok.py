import urllib.request

with urllib.request.urlopen("http://api.good.test/", timeout=30) as answer:
    assert answer.read() == b"GET api.good.test\n"

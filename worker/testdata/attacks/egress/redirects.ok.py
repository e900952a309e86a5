import urllib.request

with urllib.request.urlopen("http://api.good.test/redirect?to=http://other.good.test/", timeout=30) as answer:
    assert answer.geturl() == "http://other.good.test/" and answer.read() == b"GET other.good.test\n"

import urllib.request

for url in ("http://api.good.test/", "https://api.good.test/"):
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.read() == b"GET api.good.test\n"

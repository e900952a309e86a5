import urllib.request

for url in ("http://api.good.test/", "http://api.good.test:80/", "http://plain.good.test/"):
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.status == 200

import urllib.request

for _ in range(5):
    with urllib.request.urlopen("http://api.good.test/", timeout=30) as answer:
        assert answer.status == 200

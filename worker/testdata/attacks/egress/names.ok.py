import urllib.request

for name in ("api.good.test", "API.Good.Test", "api.good.test.", "a-b.c.good.test", "xn--bcher-kva.good.test"):
    with urllib.request.urlopen(f"http://{name}/", timeout=30) as answer:
        assert answer.status == 200

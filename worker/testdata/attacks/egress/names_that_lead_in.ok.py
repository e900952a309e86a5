import urllib.request

for name in ("api", "other", "a.b.c"):
    with urllib.request.urlopen(f"http://{name}.good.test/", timeout=30) as answer:
        assert answer.status == 200

import urllib.request

sent = urllib.request.Request("https://api.good.test/", data=b"x" * 100_000, method="POST")
with urllib.request.urlopen(sent, timeout=30) as answer:
    assert answer.read() == b"POST api.good.test\n"

import urllib.request

with urllib.request.urlopen("http://plain.good.test/", timeout=30) as answer:
    assert answer.read() == b"GET plain.good.test\n"

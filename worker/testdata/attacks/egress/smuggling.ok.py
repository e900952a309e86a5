import urllib.request

sent = urllib.request.Request("http://api.good.test/", data=b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", method="POST")
with urllib.request.urlopen(sent, timeout=30) as answer:
    assert answer.read() == b"POST api.good.test\n"

"""Bytes that are no request: TLS at the proxy, HTTP/2, headers without end, slow ones, a hundred half requests at once. They are answered 400 or
closed, and the proxy serves the next one."""
# timeout: 60
# network: allowlist
# allow: *.good.test

import os
import socket
import urllib.parse

PROXY = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])


def ask(text):
    got = b""
    with socket.create_connection((PROXY.hostname, PROXY.port), timeout=20) as s:
        try:
            s.sendall(text if isinstance(text, bytes) else text.encode("latin-1"))
            s.shutdown(socket.SHUT_WR)
            while part := s.recv(1 << 16):
                got += part
        except ConnectionError:
            pass
    return got


for text in (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00" * 100, os.urandom(4096), b"\x00" * 70000, b"\r\n" * 20000,
    b"GET http://api.good.test/ HTTP/1.1\r\n" + b"X: y\r\n" * 100_000, b"GET http://api.good.test/ HTTP/1.1\r\nX: " + b"y" * 5_000_000 + b"\r\n\r\n", b"GET " + b"a" * 5_000_000,
    b"GET http://api.good.test/ HTTP/0.9\r\n\r\n", b"GET http://api.good.test/ HTTP/9.9\r\nHost: x\r\n\r\n", b"GET http://api.good.test/", b"HTTP/1.1 200 OK\r\n\r\n", b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00",
):
    got = ask(text)
    assert not got or got.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5", b"HTTP/1.0 4")) or b"HTTP/1.1 4" in got, (text[:60], got[:200])
half = []
for _ in range(100):
    s = socket.create_connection((PROXY.hostname, PROXY.port), timeout=20)
    s.sendall(b"GET http://api.good.test/ HTTP/1.1\r\nHo")
    half.append(s)
for s in half:
    s.close()

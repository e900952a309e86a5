"""Methods that a rule does not allow: by their name, in small letters, by headers that some servers take instead, and by a tunnel, in which nobody
sees them."""
# network: allowlist
# allow: GET,HEAD plain.good.test

import os
import socket
import urllib.parse

PROXY = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])


def ask(text):
    got = b""
    with socket.create_connection((PROXY.hostname, PROXY.port), timeout=20) as s:
        try:
            s.sendall(text if isinstance(text, bytes) else text.encode("latin-1"))
            while part := s.recv(1 << 16):
                got += part
        except ConnectionError:
            pass
    return got


for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "Get", "GETX", "G", "PROPFIND", "CONNECT"):
    got = ask(f"{method} http://plain.good.test/ HTTP/1.1\r\nHost: plain.good.test\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    assert got.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), (method, got[:200])
for port in (80, 443):
    got = ask(f"CONNECT plain.good.test:{port} HTTP/1.1\r\nHost: plain.good.test\r\n\r\n")
    assert got.startswith(b"HTTP/1.1 403"), (port, got[:200])

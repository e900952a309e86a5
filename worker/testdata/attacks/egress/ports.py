"""Other ports of an allowed host, and ports that are written so that two parsers read them differently."""
# network: allowlist
# allow: api.good.test
# allow: plain.good.test:80

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


for port in (22, 25, 53, 1, 81, 444, 6379, 8080, 8443, 65535, 0, -80, 65536, 65536 + 80, "080", "+80", "80 ", "0x50", "８０", "80:80", "80.0", "http", "", "80,443", "80\t", "80;", "80#", "80@"):
    for line in (f"CONNECT api.good.test:{port}", f"GET http://api.good.test:{port}/"):
        if port == "" and line.startswith("GET"):
            continue  # a URL may leave out the number
        if port == "80#" and line.startswith("GET"):
            continue
        got = ask(f"{line} HTTP/1.1\r\nHost: api.good.test\r\nConnection: close\r\n\r\n".encode())
        assert got.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), (line, got[:200])
for line in ("CONNECT plain.good.test:443", "GET http://plain.good.test:443/", "GET https://plain.good.test:80/", "GET https://plain.good.test/"):
    got = ask(f"{line} HTTP/1.1\r\nHost: plain.good.test\r\nConnection: close\r\n\r\n")
    assert got.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), (line, got[:200])

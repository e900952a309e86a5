"""Allowed names whose owner points them at the victim, the metadata services of clouds, loopback and private networks, also by addresses that
contain another one. Each address is checked after it was resolved."""
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
            while part := s.recv(1 << 16):
                got += part
        except ConnectionError:
            pass
    return got


NAMES = (
    "victim", "both", "metadata", "metadata6", "shared", "loopback", "loopback6", "mapped", "nat64", "6to4", "teredo", "zero", "zero6", "link", "private", "multi",
)
for name in NAMES:
    for line in (f"CONNECT {name}.good.test:443", f"CONNECT {name}.good.test:80", f"GET http://{name}.good.test/latest/meta-data/"):
        got = ask(f"{line} HTTP/1.1\r\nHost: {name}.good.test\r\nMetadata: true\r\nConnection: close\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 403") and b"not public" in got, (line, got[:300])

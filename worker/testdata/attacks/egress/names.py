"""Names that look like an allowed one: it as a beginning, as an end without a dot, as a user, with letters of other scripts, escapes, NUL."""
# network: allowlist
# allow: api.good.test
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


for name in (
    "good.test", "evilgood.test", "api-good.test", "good.test.evil.test", "api.good.test.evil.test", "api.good.test@bare.wide.test", "bare.wide.test#.good.test", "bare.wide.test?.good.test",
    "bare.wide.test/.good.test", "bare.wide.test%2f.good.test", "bare.wide.test%00.good.test", "bare.wide.test\x00.good.test", "bare.wide.test\\.good.test", "bare.wide.test .good.test", "bare.wide.test\t.good.test",
    "api%2egood%2etest", "api.good.test..", "api..good.test", ".good.test", "*.good.test", "api.good.tes\xf4", "аpi.good.test", "api。good。test", "-.good.test", "api.good.test,bare.wide.test",
    "bare.wide.test;.good.test", "x" * 64 + ".good.test", "api.good.test:80@bare.wide.test", "[api.good.test]", "test", "http:", "",
):
    for line in (f"CONNECT {name}:443", f"CONNECT {name}:80", f"GET http://{name}/"):
        got = ask(f"{line} HTTP/1.1\r\nHost: api.good.test\r\nConnection: close\r\n\r\n".encode())
        assert got.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), (line, got[:200])

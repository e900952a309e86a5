"""More tunnels than a sandbox may have, held open without a byte, and then while a host never ends its answer. Those over the limit are refused,
and a tunnel without a ClientHello ends after ten seconds."""
# timeout: 60
# alone: true
# network: allowlist
# allow: *.good.test

import os
import socket
import ssl
import time
import urllib.parse

PROXY = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])


def tunnel(target):
    s = socket.create_connection((PROXY.hostname, PROXY.port), timeout=20)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head and (part := s.recv(4096)):
        head += part
    return s, head


held, refused = [], 0
for _ in range(100):
    s, head = tunnel("api.good.test:443")
    if head.startswith(b"HTTP/1.1 200"):
        held.append(s)
    else:
        assert head.startswith((b"HTTP/1.1 429", b"HTTP/1.1 503")), head[:200]  # the sandbox has as many, or its tenant has no memory for more
        refused += 1
        s.close()
assert 0 < len(held) <= 64 and refused >= 36, (len(held), refused)
began = time.monotonic()
for s in held:
    s.settimeout(25)
    assert s.recv(1) == b"", "the tunnel says something"
    s.close()
assert time.monotonic() - began < 25
streams = []
for _ in range(20):
    s, head = tunnel("api.good.test:443")
    assert head.startswith(b"HTTP/1.1 200"), head[:200]
    inside = ssl._create_unverified_context().wrap_socket(s, server_hostname="api.good.test")
    inside.sendall(b"GET /hold HTTP/1.1\r\nHost: api.good.test\r\n\r\n")
    streams.append(inside)
globals()["kept open until the sandbox ends"] = streams

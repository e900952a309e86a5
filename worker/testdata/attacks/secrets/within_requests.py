"""Requests within a request to the host of a secret, so that the answer to one has what belongs to the next: bodies that hold requests, lengths that
contradict, pipelining, a request that never ends. Each is a request of its own on a connection of its own, and every answer is searched."""
# network: allowlist
# allow: api.good.test
# allow: other.good.test
# secret: API_TOKEN api.good.test Authorization: Bearer
# secret: API_KEY api.good.test X-Api-Key

import os
import re
import socket
import ssl
import urllib.parse

PROXY = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])


def tunnel(target):
    s = socket.create_connection((PROXY.hostname, PROXY.port), timeout=20)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head and (part := s.recv(4096)):
        head += part
    return s, head


def shows(text):
    return re.search(rb"sk-[A-Z0-9]{20}", text if isinstance(text, bytes) else text.encode())


NEXT = "GET /echo HTTP/1.1\r\nHost: api.good.test\r\nConnection: close\r\n\r\n"
for head, body in (
    (f"Content-Length: {len(NEXT)}", NEXT), ("Content-Length: 0", NEXT), ("Transfer-Encoding: chunked", "0\r\n\r\n" + NEXT), (f"Content-Length: {len(NEXT) + 5}\r\nTransfer-Encoding: chunked", "0\r\n\r\n" + NEXT),
    ("Transfer-Encoding: chunked\r\nContent-Length: 3", "0\r\n\r\n" + NEXT), ("Content-Length: 100000", NEXT), ("Content-Length: 5\r\nContent-Length: 6", NEXT), ("Transfer-Encoding: chunked", "5\r\nGET /\r\n0\r\nX-Api-Key: mine\r\n\r\n" + NEXT),
    ("Expect: 100-continue\r\nContent-Length: 3", "abc" + NEXT), ("Upgrade: h2c\r\nConnection: Upgrade", NEXT),
):
    for line in ("POST /echo", "GET /echo?how=drip", "POST /"):
        s, answer = tunnel("api.good.test:443")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        s = ssl.create_default_context().wrap_socket(s, server_hostname="api.good.test")
        s.settimeout(3)
        got = b""
        try:
            s.sendall(f"{line} HTTP/1.1\r\nHost: api.good.test\r\nConnection: close\r\n{head}\r\n\r\n{body}".encode())
            while part := s.recv(1 << 16):
                got += part
        except (OSError, ssl.SSLError):
            pass
        s.close()
        assert not shows(got), (line, head, got)
        print(got.decode(errors="replace"))

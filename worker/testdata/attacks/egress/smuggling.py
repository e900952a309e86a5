"""Requests hidden in requests: two lengths, chunks with a length, a Host that contradicts the URL, line ends in headers, second requests in bodies.
Each request that the proxy makes is written anew, on a connection of its own, with the host of the URL that was checked."""
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


HIDDEN = "GET http://bare.wide.test/hidden HTTP/1.1\r\nHost: bare.wide.test\r\n\r\n"
WITHIN = "GET /hidden HTTP/1.1\r\nHost: bare.wide.test\r\n\r\n"
LAST = "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n"  # is refused, and so ends the connection
for hidden in (HIDDEN, WITHIN):
    for head, body in (
        ("Host: bare.wide.test\r\n", ""),
        ("Host: api.good.test\r\nHost: bare.wide.test\r\n", ""),
        (f"Host: api.good.test\r\nContent-Length: {len(hidden) + 5}\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n" + hidden),
        ("Host: api.good.test\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n", "0\r\n\r\n" + hidden),
        ("Host: api.good.test\r\nTransfer-Encoding: xchunked\r\n", "0\r\n\r\n" + hidden),
        ("Host: api.good.test\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", "0\r\n\r\n" + hidden),
        ("Host: api.good.test\r\nContent-Length: 0\r\nContent-Length: 5\r\n", hidden),
        ("Host: api.good.test\r\nContent-Length: +0\r\n", hidden),
        ("Host: api.good.test\r\nContent-Length : 0\r\n", hidden),
        ("Host: api.good.test\r\nX: a\rHost: bare.wide.test\r\n", ""),
        ("Host: api.good.test\r\nX: a\n\nGET /hidden HTTP/1.1\nHost: bare.wide.test\r\n", ""),
        ("Host: api.good.test\r\n Host: bare.wide.test\r\n", ""),
        ("Host: api.good.test\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("Host: api.good.test\r\nExpect: 100-continue\r\nContent-Length: 3\r\n", "abc" + hidden),
        ("Host: api.good.test\r\nX-Forwarded-Host: bare.wide.test\r\nForwarded: host=bare.wide.test\r\n", hidden),
        ("Host: api.good.test\r\nConnection: Host\r\n", ""),
    ):
        for method in ("GET", "POST"):
            got = ask(f"{method} http://api.good.test/ HTTP/1.1\r\nConnection: close\r\n{head}\r\n{body}") + ask(f"{method} http://api.good.test/ HTTP/1.1\r\n{head}\r\n{body}{LAST}")
            assert b"GET bare" not in got.replace(b"GET bare.wide.test:80 was refused", b"") and b"POST bare" not in got, (head, got)
for line in ("GET http://api.good.test/ HTTP/1.1\r\n\tHost: bare.wide.test", "GET http://api.good.test/\tHTTP/1.1", "GET http://api.good.test/ HTTP/1.1 HTTP/1.1", "GET\x00 http://api.good.test/ HTTP/1.1"):
    ask(f"{line}\r\nHost: bare.wide.test\r\nConnection: close\r\n\r\n")

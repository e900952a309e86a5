"""A proxy within the proxy: CONNECT inside a tunnel, other protocols there, and the proxy asked for itself by its address or a name."""
# network: allowlist
# allow: *.good.test

import os
import socket
import struct
import urllib.parse

PROXY = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])


def tunnel(target):
    s = socket.create_connection((PROXY.hostname, PROXY.port), timeout=20)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head and (part := s.recv(4096)):
        head += part
    return s, head


VICTIM = os.environ["VICTIM"]
for inside in (
    f"CONNECT {VICTIM}:80 HTTP/1.1\r\nHost: {VICTIM}\r\n\r\n".encode(), b"CONNECT bare.wide.test:443 HTTP/1.1\r\n\r\n", b"GET http://bare.wide.test/ HTTP/1.1\r\nHost: bare.wide.test\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: api.good.test\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"SSH-2.0-x\r\n", b"\x05\x01\x00\x05\x01\x00\x01" + socket.inet_aton(VICTIM) + struct.pack(">H", 80),
    b"PROXY TCP4 127.0.0.1 127.0.0.1 1 80\r\n", b"\x16\x03\x01\x00\x02\x02\x00", b"EHLO x\r\n", b"*1\r\n$4\r\nPING\r\n",
):
    for port in (80, 443):
        s, head = tunnel(f"api.good.test:{port}")
        assert head.startswith(b"HTTP/1.1 200"), head
        got = b""
        try:
            s.sendall(inside)
            s.shutdown(socket.SHUT_WR)
            while part := s.recv(4096):
                got += part
        except ConnectionError:
            pass
        s.close()
        assert got in (b"",) or got[:1] == b"\x15", (inside, got[:200])
for itself in (f"127.0.0.1:{PROXY.port}", f"localhost:{PROXY.port}", f"[::1]:{PROXY.port}", f"loopback.good.test:{PROXY.port}"):
    s, head = tunnel(itself)
    s.close()
    assert head.startswith(b"HTTP/1.1 403"), (itself, head[:200])

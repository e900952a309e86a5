"""A tunnel to an allowed host whose TLS names another one, none or an address: what is behind that host by another name (domain fronting) stays
there. The ClientHello must name the host of the CONNECT."""
# sample: true
# network: allowlist
# allow: *.good.test

import os
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


for name in ("bare.wide.test", "other.good.test", "evil.test", "api.good.test.evil.test", "xapi.good.test", None, os.environ["VICTIM"], "localhost"):
    s, head = tunnel("api.good.test:443")
    assert head.startswith(b"HTTP/1.1 200"), head
    context = ssl._create_unverified_context()
    try:
        inside = context.wrap_socket(s, server_hostname=name)
    except (OSError, ssl.SSLError):
        s.close()
        continue
    raise AssertionError(f"the handshake for {name} succeeds: {inside.getpeercert(True)!r:.80}")

"""The secret for another host: a request to another allowed host, another Host or name within the tunnel, a redirect to another host, the same host
at a port without TLS. It is added for its exact host over TLS only."""
# sample: true
# network: allowlist
# allow: api.good.test
# allow: other.good.test
# secret: API_TOKEN api.good.test Authorization: Bearer
# secret: API_KEY api.good.test X-Api-Key

import os
import re
import socket
import ssl
import subprocess
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


TLS = ssl._create_unverified_context()


def inside(target, name, request):
    s, head = tunnel(target)
    if not head.startswith(b"HTTP/1.1 200"):
        return head
    got = b""
    try:
        s = TLS.wrap_socket(s, server_hostname=name)
        s.sendall(request.encode())
        while part := s.recv(1 << 16):
            got += part
    except (OSError, ssl.SSLError) as e:
        return got + repr(e).encode()
    return got


for host in ("other.good.test", "api.good.test:8443", "bare.wide.test", "", "api.good.test.evil.test", "api.good.test@other.good.test", "127.0.0.1"):
    for line in ("GET /digest", f"GET https://{host}/digest", f"GET http://{host}/digest"):
        got = inside("api.good.test:443", "api.good.test", f"{line} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")
        assert got.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), (host, line, got[:300])
for target, name in (("other.good.test:443", "other.good.test"), ("other.good.test:443", "api.good.test"), ("api.good.test:443", "other.good.test"), ("api.good.test:80", "api.good.test")):
    got = inside(target, name, "GET /digest HTTP/1.1\r\nHost: api.good.test\r\nConnection: close\r\n\r\n")
    assert b"Authorization 1 " not in got and b"X-Api-Key 1 " not in got, (target, name, got)
for to in ("https://other.good.test/digest", "http://other.good.test/digest", "//other.good.test/digest"):
    done = subprocess.run(["curl", "-skL", "-m", "30", "--location-trusted", "https://api.good.test/redirect?to=" + urllib.parse.quote(to)], capture_output=True)
    assert b"Authorization 0 " in done.stdout, done

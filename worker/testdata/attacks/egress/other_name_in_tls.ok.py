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


s, head = tunnel("api.good.test:443")
inside = ssl._create_unverified_context().wrap_socket(s, server_hostname="api.good.test")
inside.sendall(b"GET / HTTP/1.1\r\nHost: api.good.test\r\nConnection: close\r\n\r\n")
assert inside.recv(1000).startswith(b"HTTP/1.1 200")

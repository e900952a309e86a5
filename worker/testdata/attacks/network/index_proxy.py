"""The way to the package index as a way to anywhere else: whole addresses, CONNECT, users, escapes, names of hosts, requests within
requests. Each is refused before anything is dialled."""
# sample: true

import socket

INDEX = ("127.0.0.1", 3141)
ELSEWHERE = ("169.254.169.254", "127.0.0.1:8000", "127.0.0.1:6379", "localhost:9000", "[::1]:8000", "pypi.org", "host.docker.internal")
HEAD = " HTTP/1.1\r\nHost: {}\r\n{}\r\n"


def ask(text):
    with socket.create_connection(INDEX, timeout=10) as s:
        s.sendall(text.encode("latin-1"))
        got = b""
        while part := s.recv(1 << 16):
            got += part
    return got


def refused(text):
    got = ask(text)
    answers = got.count(b"HTTP/1.1 ")
    assert answers == 1 and got.startswith(b"HTTP/1.1 4"), (text, got[:300])


for there in ELSEWHERE:
    for line in (
        f"GET http://{there}/",
        f"GET http://{there}/pypi/simple/six/",
        f"GET https://x@{there}/",
        f"GET //{there}/",
        f"CONNECT {there}",
        f"CONNECT {there}:443",
        f"GET /pypi/simple/http:%2f%2f{there}/",
        f"GET /pypi/simple/six@{there}/",
        f"GET /pypi/simple/..%2f..%2f..%2f{there}/",
        f"GET /pypi/files/six/..%2f..%2f{there}",
        f"GET /pypi/files/{there}/x%2f..%2fy",
        f"GET /npm/@{there}%2f..%2fx/-/..",
        f"GET /npm/http:%2f%2f{there}",
        f"GET /http://{there}/",
        f"POST http://{there}/",
    ):
        refused(line + HEAD.format(there, ""))
for line in ("GET /", "GET /metrics", "GET /v1/sandboxes", "GET /pypi/simple/", "GET /npm/-/whoami", "GET /npm/-/v1/search?text=x", "PUT /npm/x", "PRI *"):
    refused(line + HEAD.format("x", ""))
smuggled = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
refused("GET /nothing" + HEAD.format("x", f"Content-Length: {len(smuggled)}\r\n") + smuggled)
refused("GET /nothing" + HEAD.format("x", "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n") + "0\r\n\r\n" + smuggled)
refused("GET /nothing" + HEAD.format("x", "") + smuggled)
refused("GET /nothing" + HEAD.format("x", "X: " + "y" * 20_000 + "\r\n"))

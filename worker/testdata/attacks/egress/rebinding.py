"""A name that leads to an allowed address when it is first asked for, and to the victim from then on: each connection resolves once, checks what
it got, and connects to that."""
# alone: true
# network: allowlist
# allow: *.good.test

import os
import socket
import threading
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


answers = []


def again():
    for _ in range(5):
        answers.append(ask("GET http://rebind.good.test/ HTTP/1.1\r\nHost: rebind.good.test\r\nConnection: close\r\n\r\n"))


again()
racing = [threading.Thread(target=again) for _ in range(8)]
for t in racing:
    t.start()
for t in racing:
    t.join()
assert not any(b"victim" in a for a in answers)
assert sum(a.startswith(b"HTTP/1.1 403") for a in answers) >= 40, [a[:100] for a in answers]

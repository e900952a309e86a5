"""Every connection to the package index that there can be, and hundreds behind them: silent ones, halves of requests, requests that are
sent by the byte or never read, and ones that end their direction at once."""
# sample: true
# timeout: 60

import socket
import time

held = []
for i in range(400):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.setblocking(False)
    s.connect_ex(("127.0.0.1", 3141))
    held.append(s)
time.sleep(1)
for i, s in enumerate(held):
    try:
        if i % 4 == 1:
            s.send(b"GET /pypi/simple/six/ HTTP/1.1\r\nHost: ")
        elif i % 4 == 2:
            s.send(b"GET /npm/" + b"x" * 1500 + b" HTTP/1.1\r\nHost: x\r\n\r\n" * 40)
        elif i % 4 == 3:
            s.send(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
            s.shutdown(socket.SHUT_WR)
    except OSError:
        pass
until = time.monotonic() + 8
while time.monotonic() < until:
    for s in held:
        try:
            s.send(b"x")
        except OSError:
            pass
    time.sleep(0.5)
for s in held:
    s.close()

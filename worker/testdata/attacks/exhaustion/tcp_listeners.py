# sample: true
# error: OutOfMemory
"""As many listeners as open files, each with connections that nobody accepted. The kernel charges them to nobody and has no limit for
their number; the agent counts them and ends what made them."""

import socket
import time

servers = []
for _ in range(120):
    server = socket.create_server(("127.0.0.1", 0), backlog=128)
    servers.append(server)
    for _ in range(129):
        with socket.socket() as client:
            client.setblocking(False)
            client.connect_ex(server.getsockname())
            try:
                client.send(bytes(64 << 10))
            except OSError:
                pass
time.sleep(20)

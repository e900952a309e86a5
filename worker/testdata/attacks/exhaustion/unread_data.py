"""Connections with data that nobody reads: 76 of them kept 287 MiB of the host, since the limit on them was ignored."""
# sample: true
# error: none OutOfMemory KernelDied

import socket

held, kept = [], 0
with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
    for _ in range(100):
        client = socket.create_connection(server.getsockname())
        client.setblocking(False)
        held += [client, server.accept()[0]]
        try:
            while True:
                kept += client.send(bytes(1 << 18))
        except BlockingIOError:
            pass
for s in held:
    s.close()
assert kept < 96 << 20, f"{kept >> 20} MiB are kept"

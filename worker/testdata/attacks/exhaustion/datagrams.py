"""Datagrams that nobody reads, in as many sockets as there can be."""
# error: OSError OutOfMemory KernelDied

import socket

held, kept = [], 0
for _ in range(400):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("127.0.0.1", 0))
    s.setblocking(False)
    held.append(s)
    try:
        for _ in range(50):
            kept += s.sendto(bytes(60_000), s.getsockname())
    except BlockingIOError:
        pass
for s in held:
    s.close()
raise OSError(f"{kept} bytes were taken")

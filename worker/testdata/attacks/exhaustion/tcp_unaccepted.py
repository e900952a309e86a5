"""Connections that nobody accepted kept what their clients had sent, 4096 times some hundred kilobytes for each listener, and the kernel
charged it to nobody: one listener took 2 GB of the host's memory, all that TCP may have, after its clients were gone."""
# sample: true
# runtime: runc

import array
import fcntl
import socket
import termios

LISTENERS, BACKLOG = 4, 128
assert int(open("/proc/sys/net/core/somaxconn").read()) == BACKLOG
kept = accepted = 0
for _ in range(LISTENERS):
    with socket.socket() as server:
        before = server.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)  # children inherit it
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 4 << 20)  # raises the buffer, too
            raise AssertionError("SO_RCVLOWAT was set")
        except OSError:
            pass
        assert server.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == before
        server.bind(("127.0.0.1", 0))
        server.listen(1 << 20)
        for _ in range(2 * BACKLOG):
            with socket.socket() as client:
                client.setblocking(False)
                client.connect_ex(server.getsockname())
                try:
                    while client.send(bytes(1 << 20)):
                        pass
                except OSError:
                    pass
        server.setblocking(False)
        count = 0
        try:
            while True:
                child = server.accept()[0]
                size = array.array("i", [0])
                fcntl.ioctl(child.fileno(), termios.FIONREAD, size)
                kept, count = kept + size[0], count + 1
                child.close()
        except BlockingIOError:
            pass
        accepted += count
        assert count <= BACKLOG + 1, count
assert accepted >= BACKLOG, accepted
assert kept <= accepted * (64 << 10), (kept, accepted)

import selectors
import socket

a, b = socket.socketpair()
with selectors.EpollSelector() as ready:
    ready.register(b, selectors.EVENT_READ)
    a.send(b"x")
    assert ready.select(5)

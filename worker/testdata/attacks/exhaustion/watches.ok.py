import select
import shutil
import socket

shutil.rmtree("/tmp/watched", ignore_errors=True)
a, b = socket.socketpair()
with select.epoll() as e:
    e.register(a, select.EPOLLIN)
    b.send(b"x")
    assert e.poll(5)

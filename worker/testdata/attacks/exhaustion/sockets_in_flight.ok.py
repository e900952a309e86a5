import array
import os
import socket

a, b = socket.socketpair()
read, write = os.pipe()
socket.send_fds(a, [b"x"], [read])
data, got, *_ = socket.recv_fds(b, 10, 1)
os.write(write, b"y")
assert os.read(got[0], 1) == b"y"
for fd in (read, write, got[0]):
    os.close(fd)

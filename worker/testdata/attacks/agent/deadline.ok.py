import socket

a, b = socket.socketpair(socket.AF_UNIX)
a.send(b"x")
assert b.recv(1) == b"x"

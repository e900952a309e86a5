import socket

for family in (socket.AF_UNIX, socket.AF_INET):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        socket.socket(family, kind).close()

"""A name server carries data out even where nothing else does: one asks for names that contain it."""

import socket

for server in ("127.0.0.11", "127.0.0.53", "8.8.8.8", "1.1.1.1", "9.9.9.9"):
    question = b"\x12\x34\x01\0\0\1\0\0\0\0\0\0\4data\7example\3com\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(0.5)
        try:
            s.sendto(question, (server, 53))
            s.recv(512)
        except OSError:
            pass
        else:
            raise AssertionError(f"{server} answered")
    with socket.socket() as s:
        s.settimeout(2)
        assert s.connect_ex((server, 53)) != 0, server
for name in ("example.com", "data.example.com", "localhost.localdomain.example"):
    try:
        socket.getaddrinfo(name, 80)
    except OSError:
        continue
    raise AssertionError(f"{name} was resolved")

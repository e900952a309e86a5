import socket

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.bind(("127.0.0.1", 0))
    for _ in range(10):
        s.sendto(b"x" * 1000, s.getsockname())
        assert len(s.recv(2000)) == 1000

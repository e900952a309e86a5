import socket

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.bind(("127.0.0.1", 0))
    one.sendto(b"x", one.getsockname())
    assert one.recv(10) == b"x"

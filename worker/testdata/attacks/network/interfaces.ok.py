import socket

with socket.socket() as s:
    s.bind(("127.0.0.2", 0))
    assert s.getsockname()[0] == "127.0.0.2"

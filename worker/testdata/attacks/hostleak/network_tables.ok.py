import socket

with socket.create_server(("127.0.0.1", 0)) as server:
    port = server.getsockname()[1]
    assert port > 0

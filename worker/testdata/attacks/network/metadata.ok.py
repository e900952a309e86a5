import socket

with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
    assert client.getpeername() == server.getsockname()

import socket

with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
    client.sendall(b"x")
    assert server.accept()[0].recv(1) == b"x"
a, b = socket.socketpair()

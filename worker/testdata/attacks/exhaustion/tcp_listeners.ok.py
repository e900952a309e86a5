import socket

# A busy server: some hundred connections at once, many in a row.
with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
    pairs = []
    for _ in range(400):
        client = socket.create_connection(server.getsockname())
        pairs.append((client, server.accept()[0]))
    for client, peer in pairs:
        client.sendall(b"x")
        assert peer.recv(1) == b"x"
        client.close()
        peer.close()
    for _ in range(2000):
        with socket.create_connection(server.getsockname()) as client, server.accept()[0] as peer:
            client.sendall(b"x")
            assert peer.recv(1) == b"x"

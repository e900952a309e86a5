import socket

with socket.create_server(("127.0.0.1", 0)) as server:
    pairs = []
    for _ in range(20):
        client = socket.create_connection(server.getsockname())
        pairs.append((client, server.accept()[0]))
    for client, peer in pairs:
        client.sendall(bytes(100_000))
        client.shutdown(socket.SHUT_WR)
    for client, peer in pairs:
        got = 0
        while part := peer.recv(1 << 16):
            got += len(part)
        assert got == 100_000, got
        client.close()
        peer.close()

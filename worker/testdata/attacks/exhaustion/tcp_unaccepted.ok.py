import socket
import threading

# A hundred clients at once, whose server takes its time, and one large transfer: the buffers of accepted connections grow as usual.
with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
    clients = [socket.create_connection(server.getsockname()) for _ in range(100)]
    for number, client in enumerate(clients):
        client.sendall(number.to_bytes(1, "big"))
    peers = [server.accept()[0] for _ in clients]
    assert sorted(peer.recv(1)[0] for peer in peers) == list(range(100))
    peers[0].sendall(bytes(1))
    sender = threading.Thread(target=lambda: (clients[1].sendall(bytes(64 << 20)), clients[1].shutdown(socket.SHUT_WR)))
    sender.start()
    peer = next(p for p in peers if p.getpeername() == clients[1].getsockname())
    got = 0
    while part := peer.recv(1 << 20):
        got += len(part)
    sender.join()
    assert got == 64 << 20, got
    for one in clients + peers:
        one.close()

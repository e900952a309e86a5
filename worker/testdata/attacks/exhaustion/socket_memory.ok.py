import socket
import threading

with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(("localhost", server.getsockname()[1])) as client:
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer = server.accept()[0]
    sender = threading.Thread(target=lambda: (client.sendall(bytes(32 << 20)), client.shutdown(socket.SHUT_WR)))
    sender.start()
    got = 0
    while part := peer.recv(1 << 20):
        got += len(part)
    sender.join()
    assert got == 32 << 20, got
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    one.bind(("127.0.0.1", 0))
    one.sendto(b"x" * 1000, one.getsockname())
    assert len(one.recv(2000)) == 1000

import os
import socket
import tempfile

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
    closed.bind(("127.0.0.1", 0))
    nobody = closed.getsockname()
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:  # as a resolver does
    one.setsockopt(socket.IPPROTO_IP, 11, 1)
    one.connect(nobody)
    one.send(b"x")
    try:
        one.recv(10)
        raise AssertionError("an answer from nobody")
    except ConnectionRefusedError:
        pass
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
    server.bind(("127.0.0.1", 0))
    one.sendmsg([b"a", b"b"], [], socket.MSG_DONTWAIT, server.getsockname())
    got, address = server.recvfrom(10)
    server.sendto(got * 2, socket.MSG_NOSIGNAL, address)
    assert one.recv(10) == b"abab"
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one, tempfile.TemporaryFile() as f:
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # what web servers use
    f.write(os.urandom(100_000))
    f.seek(0)
    peer = server.accept()[0]
    one.send(b"head")
    one.send(f.read(50_000))
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
    one.shutdown(socket.SHUT_WR)
    total = 0
    while part := peer.recv(1 << 16):
        total += len(part)
    peer.close()
    assert total == 50_004, total

import socket

with socket.socket(socket.AF_UNIX) as server:
    server.bind("\0mine-abstract")
    server.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0mine-abstract")

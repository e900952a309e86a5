import os
import socket

with socket.socket(socket.AF_UNIX) as server:
    server.bind("/tmp/own.sock")
    server.listen()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("/tmp/own.sock")
os.unlink("/tmp/own.sock")

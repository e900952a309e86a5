import socket

server = socket.socket(socket.AF_UNIX)
server.bind("\0mine")
server.listen()
socket.socket(socket.AF_UNIX).connect("\0mine")

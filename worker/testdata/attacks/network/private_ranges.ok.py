import socket

assert socket.gethostbyname("localhost") == "127.0.0.1"

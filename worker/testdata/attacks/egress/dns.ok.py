import socket

assert socket.getaddrinfo("localhost", 80)

"""With the network "none" not even the package index can be reached."""
# network: none

import socket

with socket.socket() as s:
    assert s.connect_ex(("127.0.0.1", 3141)) != 0, "the package index listens"
for port in range(1, 2000):
    with socket.socket() as s:
        assert s.connect_ex(("127.0.0.1", port)) != 0, port
with socket.socket() as s:
    assert s.connect_ex(("1.1.1.1", 80)) != 0

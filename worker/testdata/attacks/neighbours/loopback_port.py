"""A server on loopback is seen by this sandbox only: another one listens on the same port at the same time."""
# check: import socket; s = socket.socket(); assert s.connect_ex(("127.0.0.1", 7777)) != 0; s.close(); s = socket.create_server(("127.0.0.1", 7777)); s.close()

import socket

with socket.create_server(("127.0.0.1", 7777)) as server:
    server.settimeout(1)
    try:
        server.accept()
    except TimeoutError:
        pass
    else:
        raise AssertionError("somebody came")

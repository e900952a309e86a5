"""A server of user code in the place of the package index would feed the installer of the next job. The port cannot be taken."""

import socket

for address in ("127.0.0.1", "0.0.0.0", ""):
    for option in ("SO_REUSEADDR", "SO_REUSEPORT"):
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, getattr(socket, option), 1)
            try:
                s.bind((address, 3141))
                s.listen()
            except OSError:
                continue
        raise AssertionError(f"port 3141 was taken at {address!r} with {option}")

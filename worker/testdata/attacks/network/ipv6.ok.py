import socket

with socket.socket(socket.AF_INET6) as s:
    try:
        s.bind(("::1", 0))
    except OSError:
        pass  # without IPv6

"""The metadata service of clouds gives credentials to whoever can reach it."""

import socket

for address in ("169.254.169.254", "169.254.170.2", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fe80::a9fe:a9fe%lo", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in (80, 443):
        with socket.socket(family) as s:
            s.settimeout(2)
            try:
                s.connect((address, port))
            except OSError as e:
                assert not isinstance(e, TimeoutError), f"{address} is routed"
                continue
        raise AssertionError(f"{address} answers")
try:
    socket.getaddrinfo("metadata.google.internal", 80)
except OSError:
    pass
else:
    raise AssertionError("the name was resolved")

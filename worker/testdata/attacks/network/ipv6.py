"""IPv6 as the way that was forgotten: link-local, unique local, mapped and tunnelled addresses."""

import socket

for address in ("fe80::1", "fe80::1%lo", "fd00::1", "fc00::1", "2606:4700:4700::1111", "2001:db8::1", "::ffff:10.0.0.1", "::ffff:172.17.0.1", "64:ff9b::0a00:0001", "2002:0a00:0001::1", "ff02::1", "ff02::1%lo"):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET6, kind) as s:
            s.settimeout(1)
            try:
                info = socket.getaddrinfo(address, 53, socket.AF_INET6, kind)[0][4]
                s.connect(info)
                s.send(b"x")
                s.recv(1)
            except OSError as e:
                if kind == socket.SOCK_STREAM:
                    assert not isinstance(e, TimeoutError), f"{address} is routed"
                continue
        raise AssertionError(f"{address} answers")

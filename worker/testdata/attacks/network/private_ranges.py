"""The host and its neighbours: bridges of the engine, private ranges, the farm's own ports. Nothing is routed but loopback."""

import socket

for address in ("172.17.0.1", "172.18.0.1", "10.0.0.1", "10.0.2.2", "192.168.0.1", "192.168.65.2", "100.64.0.1", "1.1.1.1", "8.8.8.8", "0.0.0.1", "255.255.255.255", "224.0.0.1", "240.0.0.1"):
    for port in (22, 80, 2375, 2376, 6379, 8000, 9000):
        with socket.socket() as s:
            s.settimeout(2)
            try:
                s.connect((address, port))
            except OSError as e:
                assert not isinstance(e, TimeoutError), f"{address} is routed"
                continue
        raise AssertionError(f"{address}:{port} answers")
for name in ("host.docker.internal", "gateway.docker.internal", "redis", "minio", "api", "worker"):
    try:
        socket.getaddrinfo(name, 80)
    except OSError:
        continue
    raise AssertionError(f"{name} has an address")

"""Services of the host on this loopback: Redis, the object store, the API, the engine. Only the package index listens, on 3141."""
# timeout: 60

import socket

found = []
for port in [*range(1, 12000), 16379, 26379, 27017, 50051, 61613]:
    with socket.socket() as s:
        if s.connect_ex(("127.0.0.1", port)) == 0:
            found.append(port)
assert found in ([], [3141]), found
with socket.socket(socket.AF_INET6) as s:
    for port in (22, 80, 2375, 6379, 8000, 9000):
        assert s.connect_ex(("::1", port)) != 0, port

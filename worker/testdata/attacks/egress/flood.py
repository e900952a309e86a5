"""More attempts in a minute than a sandbox may make, from many threads, allowed and denied ones: those over the limit are refused, and the
neighbour does not notice."""
# timeout: 90
# alone: true
# network: allowlist
# allow: *.good.test

import os
import socket
import threading
import urllib.parse

PROXY = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])


def ask(text):
    got = b""
    with socket.create_connection((PROXY.hostname, PROXY.port), timeout=20) as s:
        try:
            s.sendall(text if isinstance(text, bytes) else text.encode("latin-1"))
            while part := s.recv(1 << 16):
                got += part
        except ConnectionError:
            pass
    return got


codes = []


def flood(name):
    for _ in range(100):
        try:
            codes.append(ask(f"GET http://{name}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")[9:12])
        except OSError:
            codes.append(b"none")


threads = [threading.Thread(target=flood, args=(name,)) for name in ("api.good.test", "evil.test", "victim.good.test", "127.0.0.1", "bare.wide.test") * 4]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert codes.count(b"429") > len(codes) // 4, {c: codes.count(c) for c in set(codes)}
assert codes.count(b"200") < 1000

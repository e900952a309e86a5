"""Headers that mislead proxies and caches, on the way to the package index: other hosts, forwarded addresses, ranges, encodings, methods."""
# timeout: 60

import socket

for head in ("Host: 169.254.169.254", "Host: x\r\nX-Forwarded-Host: 10.0.0.1", "Host: x\r\nRange: bytes=" + ",".join(f"{n}-{n}" for n in range(1000)), "Host: x\r\nExpect: 100-continue\r\nContent-Length: 100",
             "Host: x\r\nTransfer-Encoding: chunked, identity", "Host: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__", "Host: x\r\nContent-Length: -1", "Host: x\r\nContent-Length: 5, 6", "Host: x\r\nHost: y",
             "Host: x\r\nA\x00B: c", "Host: x\r\n continued: y", "Host: x\r\nTrailer: Host", "Host: x\r\n" + "\r\n".join(f"H{n}: v" for n in range(2000))):
    for method in ("GET", "OPTIONS", "TRACE", "DELETE"):
        with socket.create_connection(("127.0.0.1", 3141), timeout=20) as s:
            try:
                s.sendall(f"{method} /nothing HTTP/1.1\r\n{head}\r\nConnection: close\r\n\r\n".encode("latin-1"))
                s.shutdown(socket.SHUT_WR)
                got = b""
                while part := s.recv(65536):
                    got += part
            except OSError:
                continue
        assert not got or got.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5", b"HTTP/1.0 4")) or got.startswith(b"HTTP/1.1 100"), (head, got[:200])
        assert b" 101 " not in got[:20], head

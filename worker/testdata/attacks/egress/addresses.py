"""The victim by its address, in every notation that some parser takes for one: rules name hosts, and addresses are refused before anything is
resolved or dialled."""
# sample: true
# network: allowlist
# allow: *.good.test

import os
import socket
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


VICTIM = os.environ["VICTIM"]
a, b, c, d = map(int, VICTIM.split("."))
number = a << 24 | b << 16 | c << 8 | d
forms = {
    VICTIM, VICTIM + ".", f"{number}", f"{number:#x}", f"0{number:o}", f"{a:#x}.{b:#x}.{c:#x}.{d:#x}", f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"{a}.{b}.{c << 8 | d}",
    f"{a}.{b << 16 | c << 8 | d}", f"{a:#x}.{b}.0{c:o}.{d}", f"00{a}.{b}.{c}.{d}", f"{number + (1 << 32)}", f"[::ffff:{VICTIM}]", f"[::{VICTIM}]",
    f"[::ffff:{a << 8 | b:x}:{c << 8 | d:x}]", f"[64:ff9b::{VICTIM}]", f"[2002:{a << 8 | b:x}:{c << 8 | d:x}::1]", f"[::ffff:0:{VICTIM}]", f"{VICTIM}%00.good.test",
    f"{VICTIM}#.good.test", f"{VICTIM}?.good.test", f"{VICTIM}/.good.test", f"x.good.test@{VICTIM}", f"{VICTIM}:80#@x.good.test", "127.1", "0", "localhost", "[::1]", "[fe80::1%lo]",
}
for form in sorted(forms):
    for port in (80, 443):
        for request in (f"CONNECT {form}:{port} HTTP/1.1\r\nHost: {form}:{port}\r\n\r\n", f"GET http://{form}:{port}/ HTTP/1.1\r\nHost: {form}\r\nConnection: close\r\n\r\n"):
            got = ask(request)
            assert got.startswith((b"HTTP/1.1 403", b"HTTP/1.1 400")), (request, got[:200])

"""The key of the authority whose certificates programs trust here: with it code could stand between other programs and hosts. Only its certificate is
in the sandbox, it is for the hosts with secrets alone, and other hosts have their own certificates."""
# network: allowlist
# allow: api.good.test
# allow: other.good.test
# secret: API_TOKEN api.good.test Authorization: Bearer
# secret: API_KEY api.good.test X-Api-Key

import os
import socket
import ssl
import urllib.parse

PROXY = urllib.parse.urlsplit(os.environ["HTTP_PROXY"])


def tunnel(target):
    s = socket.create_connection((PROXY.hostname, PROXY.port), timeout=20)
    s.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head and (part := s.recv(4096)):
        head += part
    return s, head


for top in ("/run", "/tmp", "/home", "/workspace", "/dev/shm", "/etc", "/opt"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith((".py", ".pyc", ".so")) or "/site-packages/" in path or "/lib/python" in path:
                continue
            try:
                text = open(path, "rb").read() if os.path.isfile(path) and os.path.getsize(path) < 8 << 20 else b""
            except OSError:
                continue
            assert b"PRIVATE KEY" not in text, path
bundle = open(os.environ["SSL_CERT_FILE"]).read()
own = ssl.PEM_cert_to_DER_cert("-----BEGIN CERTIFICATE-----" + bundle.rsplit("-----BEGIN CERTIFICATE-----", 1)[1])
assert b"Sandfarm" in own and b"api.good.test" in own and b"other.good.test" not in own and bytes.fromhex("0603551d1e0101ff") in own, "its names are not limited"
trusting = ssl.create_default_context()
s, head = tunnel("other.good.test:443")
try:
    trusting.wrap_socket(s, server_hostname="other.good.test")
    raise AssertionError("the proxy stands between code and a host without a secret")
except ssl.SSLCertVerificationError:
    pass

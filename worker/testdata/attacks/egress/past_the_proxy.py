"""The site and the victim without the proxy: sockets of every kind to their addresses, programs that ignore the variables, the agent's socket."""
# network: allowlist
# allow: *.good.test

import os
import socket
import subprocess

for address in (os.environ["SITE"], os.environ["VICTIM"], "::ffff:" + os.environ["SITE"]):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for port in (80, 443, 53):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind) as s:
                    s.settimeout(1)
                    s.connect((address, port))
                    s.sendall(b"\x00" * 30)
                    got = s.recv(100)
            except OSError as e:
                assert not (kind == socket.SOCK_STREAM and isinstance(e, TimeoutError)), f"{address} is routed"
                continue
            raise AssertionError((address, port, got))
for command in (["curl", "-sm", "5", "--noproxy", "*", "http://" + os.environ["SITE"] + "/"], ["curl", "-sm", "5", "--noproxy", "*", "--resolve", "api.good.test:80:" + os.environ["SITE"], "http://api.good.test/"]):
    done = subprocess.run(command, capture_output=True)
    assert done.returncode != 0, done
for url in ("http://api.good.test/", "https://api.good.test/"):
    done = subprocess.run(["curl", "-skm", "5", "--connect-to", "::" + os.environ["VICTIM"] + ":80", url], capture_output=True)
    assert done.returncode != 0 or b"refused" in done.stdout, done

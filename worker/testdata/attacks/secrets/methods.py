"""Methods whose answer repeats the request (TRACE), other methods on a host that repeats headers, and methods that servers take from a header."""
# network: allowlist
# allow: api.good.test
# allow: other.good.test
# secret: API_TOKEN api.good.test Authorization: Bearer
# secret: API_KEY api.good.test X-Api-Key

import re
import subprocess


def shows(text):
    return re.search(rb"sk-[A-Z0-9]{20}", text if isinstance(text, bytes) else text.encode())


for method in ("TRACE", "TRACK", "DEBUG", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "HEAD", "PROPFIND", "trace", "X"):
    for scheme in ("http", "https"):
        done = subprocess.run(["curl", "-si", "-m", "30", "-X", method, "--max-filesize", "1000000", f"{scheme}://api.good.test/echo?how=header"], capture_output=True)
        assert not shows(done.stdout), (method, done.stdout)
        if method == "TRACE":
            assert b" 403 " in done.stdout, done
for header in ("X-HTTP-Method-Override: TRACE", "X-Method-Override: TRACE", "X-HTTP-Method: TRACE", "Max-Forwards: 0"):
    done = subprocess.run(["curl", "-si", "-m", "30", "-H", header, "https://api.good.test/echo"], capture_output=True)
    assert not shows(done.stdout), (header, done.stdout)

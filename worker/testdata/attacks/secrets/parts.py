"""An answer that repeats the secret, taken in parts: by ranges of bytes, with two requests for the halves, and by conditions that tell its bytes
one by one."""
# network: allowlist
# allow: api.good.test
# allow: other.good.test
# secret: API_TOKEN api.good.test Authorization: Bearer
# secret: API_KEY api.good.test X-Api-Key

import re
import subprocess


def shows(text):
    return re.search(rb"sk-[A-Z0-9]{20}", text if isinstance(text, bytes) else text.encode())


parts = b""
for first in range(0, 60, 4):
    done = subprocess.run(["curl", "-s", "-m", "30", "-H", f"Range: bytes={first}-{first + 3}", "https://api.good.test/echo?how=range"], capture_output=True)
    assert len(done.stdout) != 4, done
    parts += done.stdout
assert not shows(parts), parts
for header in ("Range: bytes=0-9,10-19", "Range: bytes=-30", "range: bytes=3-", "If-Range: x", "Request-Range: bytes=0-9", "Content-Range: bytes 0-9/50", "If-Modified-Since: Mon, 01 Jan 2024 00:00:00 GMT"):
    done = subprocess.run(["curl", "-si", "-m", "30", "-H", header, "https://api.good.test/echo?how=range"], capture_output=True)
    assert b"206 Partial" not in done.stdout and not shows(done.stdout), (header, done.stdout)

"""An answer that repeats the secret in compressed form, by the wish of the code or of the host: the proxy asks for plain answers, and ends others."""
# network: allowlist
# allow: api.good.test
# allow: other.good.test
# secret: API_TOKEN api.good.test Authorization: Bearer
# secret: API_KEY api.good.test X-Api-Key

import gzip
import re
import subprocess
import zlib


def shows(text):
    return re.search(rb"sk-[A-Z0-9]{20}", text if isinstance(text, bytes) else text.encode())


for path in ("/echo?how=gzip", "/echo", "/echo?how=json"):
    for coding in ("gzip", "deflate", "*", "gzip, identity;q=0"):
        for header in ("accept-encoding", "TE", "Accept_Encoding"):
            done = subprocess.run(["curl", "-si", "-m", "30", "-H", f"{header}: {coding}", "https://api.good.test" + path], capture_output=True)
            head, _, body = done.stdout.partition(b"\r\n\r\n")
            for form in (done.stdout, body):
                for unpack in (bytes, gzip.decompress, zlib.decompress, lambda b: zlib.decompress(b, -15)):
                    try:
                        assert not shows(unpack(form)), (path, header, coding)
                    except (OSError, EOFError, zlib.error):
                        pass
            assert b"\x1f\x8b" not in body, (path, header, coding)

"""A host that repeats what it was sent: in the body, at once, byte by byte or after much else, as JSON or in a URL, in headers, their names, cookies,
a redirect, hints before the answer, trailers, or an error. The answer ends before the secret."""
# sample: true
# network: allowlist
# allow: api.good.test
# allow: other.good.test
# secret: API_TOKEN api.good.test Authorization: Bearer
# secret: API_KEY api.good.test X-Api-Key

import http.client
import re
import subprocess
import urllib.error
import urllib.request


def shows(text):
    return re.search(rb"sk-[A-Z0-9]{20}", text if isinstance(text, bytes) else text.encode())


for how in ("body", "header", "name", "cookie", "location", "hints", "trailer", "json", "url", "drip", "late", "error"):
    for scheme in ("http", "https"):
        url = f"{scheme}://api.good.test/echo?how={how}"
        got = b""
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                got = str(answer.headers).encode() + answer.geturl().encode()
                got += answer.read()
        except http.client.IncompleteRead as e:
            got += e.partial
        except urllib.error.HTTPError as e:
            got = str(e.headers).encode()
            try:
                got += e.read()
            except http.client.IncompleteRead as end:
                got += end.partial
        except OSError as e:
            got += str(e).encode()
        assert not shows(got), (url, got)
        for option in ("--http1.0", "--raw"):
            done = subprocess.run(["curl", "-siv", "-m", "30", option, url], capture_output=True)
            assert not shows(done.stdout + done.stderr), (url, option, done)
            print(done.stdout.decode(errors="replace")[-2000:])

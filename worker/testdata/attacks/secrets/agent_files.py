"""Files of the agent that name the sandbox, its key or its worker. Those that user code can read contain none of it."""

import os

seen = 0
for top in ("/run/sandfarm", "/sandfarm"):
    for folder, _, files in os.walk(top):
        for name in files:
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as f:
                    text = f.read(1 << 20) if os.path.getsize(path) < 1 << 20 else b""
            except OSError:
                continue
            seen += 1
            for word in (b"BEGIN PRIVATE KEY", b"BEGIN RSA", b"redis://", b"aws_secret", b"X-Amz-Signature", b"Bearer "):
                assert word not in text, (path, word)
assert seen

"""A file of unknown format makes the host's kernel look for a module for it, as root, at each exec."""

import os
import time

with open("/workspace/unknown", "wb") as f:
    f.write(b"\xca\xfe\xba\xbe" + bytes(100))
os.chmod("/workspace/unknown", 0o755)
end = time.monotonic() + 3
while time.monotonic() < end:
    child = os.fork()
    if child == 0:
        try:
            os.execv("/workspace/unknown", ["x"])
        except OSError:
            os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 8
os.unlink("/workspace/unknown")

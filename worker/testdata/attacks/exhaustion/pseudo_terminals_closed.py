# runtime: runc
"""The agent counts terminals in /dev/pts. One whose first end is closed is not there, and takes one of the host's until the other end is closed."""

import os

held = []
try:
    for _ in range(400):
        first, second = os.openpty()
        os.close(first)
        held.append(second)
except OSError:
    pass
for second in held:
    os.close(second)
assert len(held) <= 256, f"{len(held)} pseudo-terminals were kept"

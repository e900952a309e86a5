"""A hundred thousand locks on one file, each a record of the kernel of 192 bytes. It charges them to nobody (docs/security.md), and frees them with
their process."""
# error: OSError OutOfMemory KernelDied
# timeout: 60

import fcntl
import os
import time

end = time.monotonic() + 10
made = 0
with open("/tmp/locked", "wb") as f:
    while made < 100_000 and time.monotonic() < end:
        fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * made, os.SEEK_SET)
        made += 1
raise OSError(f"{made} locks")

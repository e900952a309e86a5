# sample: true
# error: OutOfMemory
"""The kernel has some 3000 pseudo-terminals for all sandboxes of a host: one took them all, and `!command` failed in the others."""

import os
import time

held = []
for _ in range(200):
    held.append(os.openpty())
time.sleep(20)
raise AssertionError(f"{len(os.listdir('/dev/pts'))} pseudo-terminals were kept")

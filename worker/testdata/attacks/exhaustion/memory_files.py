"""memfd_create makes files that lie in no directory and count against no limit of files but the memory's."""
# error: OutOfMemory KernelDied
# alone: true

import os

held = []
while True:
    fd = os.memfd_create("hoard")
    held.append(fd)
    os.write(fd, bytes(16 << 20))

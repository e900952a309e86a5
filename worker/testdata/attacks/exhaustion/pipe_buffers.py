"""Pipes hold what nobody reads, in memory of the kernel: as many as there can be, as large as there can be."""
# error: OutOfMemory KernelDied OSError
# ruins: true

import fcntl
import os

held = []
while True:
    read, write = os.pipe()
    held += [read, write]
    try:
        fcntl.fcntl(write, 1031, 1 << 20)
    except OSError:
        pass
    os.set_blocking(write, False)
    try:
        while os.write(write, bytes(65536)):
            pass
    except BlockingIOError:
        pass

"""Entering the namespaces of another process: of PID 1, by its pidfd, or by any file below /proc."""

import glob
import os

for path in glob.glob("/proc/1/ns/*") + glob.glob("/proc/self/ns/*"):
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        continue
    try:
        os.setns(fd, 0)
    except OSError:
        pass
    else:
        raise AssertionError(f"entered {path}")
    os.close(fd)
try:
    os.setns(os.pidfd_open(1), 0x00020000 | 0x40000000)
except OSError:
    pass
else:
    raise AssertionError("entered the namespaces of PID 1")

"""Locks on ranges of the agent's shared files, of processes and of open files. A lock of another sandbox that blocks one is a signal."""
# known: the agent's read-only volume is one for all sandboxes of a host, and so are its locks
# check: import fcntl, os, struct; f = os.open("/sandfarm/agent", os.O_RDONLY); got = fcntl.fcntl(f, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)); os.close(f); assert struct.unpack("hhqqi4x", got)[0] == fcntl.F_UNLCK, "a lock of another sandbox is seen"

import fcntl
import os
import struct
import time

fd = os.open("/sandfarm/agent", os.O_RDONLY)
for number in (fcntl.F_SETLK, 37):  # of the process; of the open file
    try:
        fcntl.fcntl(fd, number, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
    except OSError:
        pass
time.sleep(2)
os.close(fd)

"""Locks on ranges of the agent's shared files, of processes and of open files. A lock of another sandbox that blocks one is a signal. These files
can only be executed, which gives no descriptor to lock."""
# check: import fcntl, os, struct; f = os.open("/sandfarm/agent" if os.access("/sandfarm/agent", os.R_OK) else "/etc/passwd", os.O_RDONLY); got = fcntl.fcntl(f, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)); os.close(f); assert struct.unpack("hhqqi4x", got)[0] == fcntl.F_UNLCK, "a lock of another sandbox is seen"

import fcntl
import os
import struct
import time

fds = []
for path in ("/sandfarm/agent", "/sandfarm/uv", "/etc/passwd"):
    try:
        fds.append(os.open(path, os.O_RDONLY))
    except OSError:
        pass
for fd in fds:
    for number in (fcntl.F_SETLK, 37):  # of the process; of the open file
        try:
            fcntl.fcntl(fd, number, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
        except OSError:
            pass
time.sleep(2)
for fd in fds:
    os.close(fd)

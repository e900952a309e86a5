"""Locks on the agent's volume, which sandboxes share: held and released they are signals from one sandbox to another. A lock needs a file that is
open, and what lies there can only be executed. (gVisor opens it, and its locks are its own.)"""
# check: import fcntl, os; [(fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB), os.close(f)) for f in [os.open(p, os.O_RDONLY) for p in ("/sandfarm", "/sandfarm/agent", "/sandfarm/uv") if os.access(p, os.R_OK)]]

import fcntl
import os
import time

held = []
for path in ("/sandfarm", "/sandfarm/agent", "/sandfarm/uv"):
    for flags in (os.O_RDONLY, os.O_PATH, os.O_RDONLY | os.O_NONBLOCK):
        try:
            fd = os.open(path, flags)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held.append(fd)
        except OSError:
            pass
time.sleep(2)
for fd in held:
    os.close(fd)

"""Locks on what has one inode in the whole host: the kernel's anonymous files (epoll, eventfd, timers), and the namespaces that no container has
of its own. Held and released they are signals between two sandboxes that both want to."""
# runtime: runc
# known: seccomp cannot deny flock for single files, and pip, SQLite and HDF5 need it; see "File locks" in docs/security.md
# check: import fcntl, os; [(fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB), os.close(f)) for f in [os.eventfd(0), os.open("/proc/self/ns/user", os.O_RDONLY)]]

import fcntl
import os
import time

held = [os.eventfd(0)]
for name in os.listdir("/proc/self/ns"):
    try:
        held.append(os.open(f"/proc/self/ns/{name}", os.O_RDONLY))
    except OSError:
        pass
for fd in held:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass
time.sleep(2)
for fd in held:
    os.close(fd)

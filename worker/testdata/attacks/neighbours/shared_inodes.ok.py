import fcntl
import os

with open("/workspace/lock", "w") as f:
    fcntl.flock(f, fcntl.LOCK_EX)
fd = os.eventfd(0)
os.eventfd_write(fd, 1)
assert os.eventfd_read(fd) == 1
os.close(fd)

import os

fd = os.pidfd_open(os.getpid())
os.close(fd)
assert os.readlink("/proc/self/ns/pid").startswith("pid:")

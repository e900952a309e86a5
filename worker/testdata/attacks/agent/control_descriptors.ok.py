import os

fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
for fd in fds:
    os.close(fd)

import fcntl
import os

with open("/tmp/locked", "wb") as f:
    for number in range(100):
        fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * number, os.SEEK_SET)

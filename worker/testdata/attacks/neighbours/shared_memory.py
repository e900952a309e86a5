"""Shared memory of POSIX and System V, and message queues: seen by another sandbox they are a channel, and a way into its programs."""
# check: import ctypes, os; libc = ctypes.CDLL(None); assert not os.path.exists("/dev/shm/channel"); assert libc.shmget(0x5AFE, 4096, 0o666) == -1; assert libc.msgget(0x5AFE, 0o666) == -1; assert libc.semget(0x5AFE, 1, 0o666) == -1; assert libc.mq_open(b"/channel", 0) == -1

import ctypes
import time

libc = ctypes.CDLL(None, use_errno=True)
with open("/dev/shm/channel", "w") as f:
    f.write("x")
segment = libc.shmget(0x5AFE, 4096, 0o1666)
queue = libc.msgget(0x5AFE, 0o1666)
array = libc.semget(0x5AFE, 1, 0o1666)
libc.mq_open(b"/channel", 0o102, 0o666, None)
time.sleep(1)

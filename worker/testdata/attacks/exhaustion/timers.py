"""Timers of POSIX and of descriptors, thousands of them, each a thousand times a second."""
# error: KernelDied
# runsc state: completed timed_out
# runsc error: KernelDied OutOfMemory KeyboardInterrupt

import ctypes
import os
import signal
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
made = 0
for _ in range(100_000):
    ident = ctypes.c_void_p()
    event = struct.pack("Qii", 0, 14, 1) + bytes(64)  # no signal is delivered
    if libc.timer_create(1, event, ctypes.byref(ident)):
        break
    libc.timer_settime(ident, 0, struct.pack("qqqq", 0, 1_000_000, 0, 1_000_000), None)
    made += 1
fds = []
try:
    while len(fds) < 2000:
        fd = libc.timerfd_create(1, 0)
        if fd < 0:
            break
        fds.append(fd)
        libc.timerfd_settime(fd, 0, struct.pack("qqqq", 0, 1_000_000, 0, 1_000_000), None)
    time.sleep(3)
finally:
    for fd in fds:
        os.close(fd)
os._exit(0)  # so that its timers end

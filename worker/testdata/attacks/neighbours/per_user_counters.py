"""What the kernel counts for each user: instances and watches of inotify, pending signals, epoll watches. No two sandboxes have the same user,
so the other one still gets its own."""
# check: import ctypes, os, select, signal; libc = ctypes.CDLL(None); fd = libc.inotify_init1(0); assert fd >= 0, "no inotify left"; assert libc.inotify_add_watch(fd, b"/tmp", 2) > 0; os.close(fd); e = select.epoll(); e.close(); signal.setitimer(signal.ITIMER_REAL, 1000); signal.setitimer(signal.ITIMER_REAL, 0)

import ctypes
import os
import signal
import time

libc = ctypes.CDLL(None, use_errno=True)
held = []
while len(held) < 900 and (fd := libc.inotify_init1(os.O_CLOEXEC)) >= 0:
    held.append(fd)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
queued = 0
while queued < 200_000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN + 1, None) == 0:
    queued += 1
time.sleep(2)
for fd in held:
    os.close(fd)
while queued and signal.sigtimedwait([signal.SIGRTMIN + 1], 0):
    pass
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGRTMIN + 1])

"""Watches of inotify and epoll until the kernel refuses more. They count for the user, which is this sandbox's own, and as its memory."""
# error: OutOfMemory KernelDied OSError
# timeout: 60
# runsc state: completed timed_out
# runsc error: OutOfMemory KernelDied OSError KeyboardInterrupt

import ctypes
import os
import select

libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_CLOEXEC)
made = 0
os.makedirs("/tmp/watched", exist_ok=True)
for number in range(20_000):
    path = f"/tmp/watched/{number}".encode()
    os.mkdir(path)
    if libc.inotify_add_watch(fd, path, 0xFFF) < 0:
        break
    made += 1
os.close(fd)
polls = [select.epoll() for _ in range(300)]
for poll in polls:
    for other in polls[:30]:
        try:
            poll.register(other.fileno(), select.EPOLLIN)
        except OSError:
            pass  # loops and long chains are refused
raise OSError(f"{made} watches, {len(polls)} sets")

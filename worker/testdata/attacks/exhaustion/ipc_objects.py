"""Segments, semaphores and queues of System V and POSIX until there are no more. They belong to this sandbox, and stay until it ends."""
# error: none OutOfMemory KernelDied
# ruins: true
# runsc state: completed timed_out
# runsc error: none OutOfMemory KernelDied KeyboardInterrupt AssertionError

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
segments = arrays = queues = 0
while segments < 100_000 and libc.shmget(0, 1 << 20, 0o1600) >= 0:
    segments += 1
while arrays < 100_000 and libc.semget(0, 250, 0o1600) >= 0:
    arrays += 1
while queues < 100_000 and libc.msgget(0, 0o1600) >= 0:
    queues += 1
named = 0
while named < 5000 and libc.mq_open(b"/q%d" % named, 0o102, 0o600, None) >= 0:
    named += 1
assert min(100_000 - segments, 100_000 - arrays, 100_000 - queues, 5000 - named) > 0, (segments, arrays, queues, named)

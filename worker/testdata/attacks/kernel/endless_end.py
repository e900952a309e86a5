"""Handlers that run when the kernel ends and do not end themselves: a time limit, a restart and a close must not wait for them."""
# timeout: 3
# state: timed_out
# error: KernelDied KeyboardInterrupt
# next: KernelDied
# alone: true

import atexit
import signal
import time


def never():
    while True:
        time.sleep(1)


atexit.register(never)
signal.signal(signal.SIGTERM, lambda *_: never())
signal.signal(signal.SIGINT, lambda *_: never())
never()

"""Forks without end: the agent must find room to end it."""
# sample: true
# timeout: 2
# state: timed_out
# error: KernelDied KeyboardInterrupt
# runsc state: timed_out completed lost
# runsc error: KernelDied KeyboardInterrupt OutOfMemory
# runsc ruins: true

import os

while True:
    try:
        os.fork()
    except OSError:
        pass

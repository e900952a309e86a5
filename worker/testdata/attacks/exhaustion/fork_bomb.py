"""Forks without end: the agent must find room to end it."""
# sample: true
# timeout: 2
# state: timed_out
# error: KernelDied KeyboardInterrupt

import os

while True:
    try:
        os.fork()
    except OSError:
        pass

"""The kernel stops itself, so that it answers to nothing: the time limit ends it."""
# timeout: 3
# state: timed_out
# error: KernelDied KeyboardInterrupt
# next: KernelDied
# alone: true

import os
import signal

os.kill(os.getpid(), signal.SIGSTOP)

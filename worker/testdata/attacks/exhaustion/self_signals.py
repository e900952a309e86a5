"""Signals as fast as they can be sent, to oneself and to the agent, which must not stop working for them."""
# next: KernelDied

import os
import signal
import time

old = signal.signal(signal.SIGUSR1, lambda *_: None)
end = time.monotonic() + 3
while time.monotonic() < end:
    for number in (signal.SIGCHLD, signal.SIGWINCH, signal.SIGUSR1, signal.SIGURG, signal.SIGCONT):
        os.kill(1, number)
    os.kill(os.getpid(), signal.SIGUSR1)
signal.signal(signal.SIGUSR1, old)

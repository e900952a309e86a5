"""Every signal that can be ignored is ignored, blocked or caught, in code that does not end."""
# timeout: 3
# state: timed_out
# error: KernelDied KeyboardInterrupt
# next: KernelDied
# alone: true

import signal

signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    try:
        while True:
            pass
    except BaseException:
        pass

"""As many busy processes as there can be. The sandbox's cores bound them, and the next one gets its share."""
# timeout: 5
# state: timed_out
# error: KeyboardInterrupt KernelDied
# next: KernelDied
# runsc state: timed_out completed
# runsc error: KeyboardInterrupt KernelDied OutOfMemory

import os

for _ in range(100):
    if os.fork() == 0:
        while True:
            pass
while True:
    pass

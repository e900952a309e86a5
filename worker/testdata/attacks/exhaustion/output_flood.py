"""Output as fast as it can be made. What is beyond the limit is dropped in the sandbox, and the time limit ends it."""
# timeout: 4
# state: timed_out
# error: KeyboardInterrupt KernelDied

import os

block = b"flood " * 10000
while True:
    os.write(1, block)

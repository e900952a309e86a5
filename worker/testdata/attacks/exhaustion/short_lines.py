"""Millions of lines of one byte, on both streams in turn: each could be an event of its own."""
# timeout: 4
# state: timed_out
# error: KeyboardInterrupt KernelDied

import os

while True:
    os.write(1, b"\n")
    os.write(2, b"x")

"""The smallest example: streaming output, and the value of the last expression."""

import platform
import sys
import time

for step in range(1, 4):
    print(f"step {step} of 3", flush=True)
    time.sleep(0.3)

print("this goes to stderr", file=sys.stderr)

f"hello from Python {platform.python_version()} on {platform.node()}"

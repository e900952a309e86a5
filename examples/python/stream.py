"""Streaming output, and the partial result after a timeout."""

import sys

from sandfarm import JobTimedOut, Sandbox

code = """
import time
for n in range(100):
    print("step", n, flush=True)
    time.sleep(0.5)
"""

with Sandbox() as box:
    try:
        box.run(code, timeout=2, on_stdout=lambda text: print(text, end="", flush=True))
    except JobTimedOut as error:
        print("stopped after", error.result.stdout.count("step"), "steps", file=sys.stderr)

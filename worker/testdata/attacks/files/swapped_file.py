"""A file is exchanged for a link to /etc/passwd while it is collected as an artifact: it grows, shrinks and is another one at each look."""
# reads: moving moving moving moving

import subprocess
import sys

PROGRAM = """
import os, time
end = time.monotonic() + 6
number = 0
while time.monotonic() < end:
    number += 1
    with open("moving.new", "wb") as f:
        f.write(b"x" * (number % 7 * 100_000))
    os.replace("moving.new", "moving")
    os.symlink("/etc/passwd", "moving.new")
    os.replace("moving.new", "moving")
"""
subprocess.Popen([sys.executable, "-c", PROGRAM], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

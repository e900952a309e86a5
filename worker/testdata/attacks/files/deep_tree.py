"""Directories within directories, thousands of levels: longer than any path may be, and deeper than descriptors reach."""
# runsc ruins: true
# runsc timeout: 90

import os

top = os.open(".", os.O_RDONLY)
made = 0
try:
    for _ in range(3000):
        os.makedirs("d" * 100, exist_ok=True)
        os.chdir("d" * 100)
        made += 1
except OSError:
    pass
with open("bottom", "w") as f:
    f.write("x")
os.fchdir(top)
os.close(top)
assert made > 100

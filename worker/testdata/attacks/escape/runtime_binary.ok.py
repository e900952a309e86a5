import os
import sys

assert os.path.realpath("/proc/self/exe") == os.path.realpath(sys.executable)
with open("/proc/self/exe", "rb") as program:
    assert program.read(4) == b"\x7fELF"

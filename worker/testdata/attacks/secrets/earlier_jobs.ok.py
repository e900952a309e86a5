import gc
import os

assert "ONLY_FOR_ONE" not in os.environ
assert b"mark-7f3a" not in open("/proc/self/environ", "rb").read()

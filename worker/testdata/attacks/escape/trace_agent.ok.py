import ctypes
import os

# A program may read its own memory.
text = ctypes.create_string_buffer(b"here")
with open("/proc/self/mem", "rb") as f:
    f.seek(ctypes.addressof(text))
    assert f.read(4) == b"here"

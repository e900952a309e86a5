"""Text that is no text: half characters, zero bytes, escapes and invalid UTF-8 on both streams, in names and in results."""

import os
import sys

os.write(1, b"\xff\xfe\x00\x1b[2J\xed\xa0\x80" + bytes(range(256)))
os.write(2, b"\xc0\x80\xf8\x88\x80\x80\x80\n")
try:
    print("\ud800\udfff")
except UnicodeEncodeError:
    pass
globals()["\ud800"] = 1
del globals()["\ud800"]

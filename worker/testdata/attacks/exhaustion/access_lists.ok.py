import errno
import os
import shutil
import struct

with open("file", "w") as f:
    f.write("text")
try:
    os.setxattr("file", "user.key", b"")
    sizes = (3, 5, 44, 1000, 1022, 1023, 1024)
except OSError as e:
    assert e.errno == errno.ENOTSUP, e  # before Linux 6.6 a tmpfs has none
    sizes = ()
for size in sizes:
    os.setxattr("file", "user.key", b"v" * size)
    assert os.getxattr("file", "user.key") == b"v" * size, size
whole = [(1, 6, 2**32 - 1), (2, 4, 12345), (4, 4, 2**32 - 1), (0x10, 6, 2**32 - 1), (0x20, 4, 2**32 - 1)]
acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in whole)
os.setxattr("file", "system.posix_acl_access", acl)
shutil.copy2("file", "copy")
assert not sizes or os.getxattr("copy", "user.key") == b"v" * 1024
for name in ("file", "copy"):
    os.remove(name)

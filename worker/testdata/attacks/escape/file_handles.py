"""open_by_handle_at takes any inode of a file system by its number, whatever the mounts of the container (the "shocker" of 2014)."""

import ctypes
import os
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
number = 304 if platform.machine() == "x86_64" else 265
for top in ("/etc/hosts", "/etc/resolv.conf", "/sandfarm", "/workspace", "/"):
    try:
        fd = os.open(top, os.O_RDONLY)
    except OSError:
        continue
    for inode in (1, 2, 5, 128):
        handle = ctypes.create_string_buffer(struct.pack("IiQ", 8, 1, inode))
        assert libc.syscall(ctypes.c_long(number), ctypes.c_long(fd), handle, ctypes.c_long(os.O_RDONLY)) == -1, (top, inode)
    os.close(fd)

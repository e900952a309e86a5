"""A user namespace gives all capabilities inside it, and with them a wide part of the kernel. Neither unshare nor clone nor clone3 makes
one, nor any other namespace."""

import ctypes
import errno
import os
import platform
import signal
import struct

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
kinds = {"user": 0x10000000, "mount": 0x00020000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000, "uts": 0x04000000, "cgroup": 0x02000000, "time": 0x80}
clone = 56 if x86 else 220
for name, flag in kinds.items():
    ctypes.set_errno(0)
    assert libc.unshare(flag) == -1, name
    if name == "time":
        continue  # bits of the signal in clone
    for flags in (flag, flag | kinds["user"]):
        child = libc.syscall(ctypes.c_long(clone), ctypes.c_long(flags | signal.SIGCHLD), None, None, None, None)
        if child == 0:
            os._exit(0)
        if child > 0:
            os.waitpid(child, 0)
        assert child == -1, (name, flags)
    args = ctypes.create_string_buffer(struct.pack("11Q", flag | kinds["user"], 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0))
    child = libc.syscall(ctypes.c_long(435), args, ctypes.c_long(88))
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    assert child == -1, f"clone3 {name}"

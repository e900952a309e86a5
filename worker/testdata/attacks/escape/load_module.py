"""A module of the kernel runs as the kernel does. Neither modules nor another kernel can be loaded."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
init, finit, delete, kexec, kexec_file = (175, 313, 176, 246, 320) if x86 else (105, 273, 106, 104, 294)
with open("/tmp/module.ko", "wb") as f:
    f.write(b"\x7fELF" + bytes(1000))
fd = os.open("/tmp/module.ko", os.O_RDONLY)
assert libc.syscall(ctypes.c_long(init), b"\x7fELF" + bytes(100), ctypes.c_long(104), b"") == -1
assert libc.syscall(ctypes.c_long(finit), ctypes.c_long(fd), b"", ctypes.c_long(3)) == -1
assert libc.syscall(ctypes.c_long(delete), b"overlay", ctypes.c_long(0)) == -1
assert libc.syscall(ctypes.c_long(kexec), ctypes.c_long(0), ctypes.c_long(0), None, ctypes.c_long(0)) == -1
assert libc.syscall(ctypes.c_long(kexec_file), ctypes.c_long(fd), ctypes.c_long(fd), ctypes.c_long(0), b"", ctypes.c_long(0)) == -1
os.close(fd)
os.unlink("/tmp/module.ko")

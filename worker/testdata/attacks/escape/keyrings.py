"""Keyrings are no part of any namespace: keys of the host, and of other containers of the same uid, could be found by name."""
# runtime: runc

import ctypes
import platform

libc = ctypes.CDLL(None, use_errno=True)
add, request, control = (248, 249, 250) if platform.machine() == "x86_64" else (217, 218, 219)
assert libc.syscall(ctypes.c_long(add), b"user", b"mark", b"x", ctypes.c_long(1), ctypes.c_long(-3)) == -1
assert libc.syscall(ctypes.c_long(request), b"user", b"mark", None, ctypes.c_long(-3)) == -1
for operation in (0, 1, 6, 10, 11, 17, 18, 26):
    assert libc.syscall(ctypes.c_long(control), ctypes.c_long(operation), ctypes.c_long(-3), ctypes.c_long(0), ctypes.c_long(0), ctypes.c_long(0)) == -1, operation

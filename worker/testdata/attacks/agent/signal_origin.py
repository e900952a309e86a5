"""A SIGSEGV whose origin is forged looks to Go like a fault of its own: the agent, PID 1 of the same uid, died of it."""
# sample: true

import ctypes
import fcntl
import os

libc = ctypes.CDLL(None, use_errno=True)


class Value(ctypes.Union):
    _fields_ = [("number", ctypes.c_int), ("pointer", ctypes.c_void_p)]


for number in (4, 5, 7, 8, 11):
    assert libc.sigqueue(1, number, Value(number=0)) == -1, number
info = (ctypes.c_int * 32)()
info[0], info[2] = 11, -1
try:
    assert libc.syscall(424, os.pidfd_open(1), 11, info, 0) == -1
except PermissionError:  # under gVisor
    pass
read, write = os.pipe()
fcntl.fcntl(read, fcntl.F_SETOWN, 1)
for command in (10, (1 << 32) | 10):  # F_SETSIG; the kernel does not look at the upper half
    assert libc.syscall(ctypes.c_long(72), ctypes.c_long(read), ctypes.c_long(command), ctypes.c_long(11)) == -1, command
for number in [*range(1, 32), 32, 33, 34, 64]:
    os.kill(1, number)

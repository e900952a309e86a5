"""gVisor delivers signals to PID 1 that Linux keeps from it, also through the ids of its threads: SIGKILL ended the sandbox."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
x86 = os.uname().machine == "x86_64"
tkill, tgkill = (200, 234) if x86 else (130, 131)
for thread in [int(name) for name in os.listdir("/proc/1/task")]:
    for number in (9, 19):  # SIGKILL, SIGSTOP
        for target in (thread, thread | 1 << 32):  # the kernel does not look at the upper half
            libc.syscall(ctypes.c_long(62 if x86 else 129), ctypes.c_long(target), ctypes.c_long(number))
            libc.syscall(ctypes.c_long(tkill), ctypes.c_long(target), ctypes.c_long(number))
            libc.syscall(ctypes.c_long(tgkill), ctypes.c_long(1), ctypes.c_long(target), ctypes.c_long(number))
assert libc.unshare(0x10000000) == -1  # CLONE_NEWUSER
try:
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    raise AssertionError("the priority was raised")
except PermissionError:
    pass

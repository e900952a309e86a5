"""Tracing the agent, or reading and writing its memory: it has the same uid, so only that it is not dumpable stands between."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
for request in (16, 0x4206):  # attach, seize
    assert libc.ptrace(ctypes.c_long(request), ctypes.c_long(1), None, None) == -1, request
read, write = (310, 311) if platform.machine() == "x86_64" else (270, 271)
local = ctypes.create_string_buffer(64)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(local), 64)
remote = (ctypes.c_size_t * 2)(0x400000, 64)
for number in (read, write):
    assert libc.syscall(ctypes.c_long(number), ctypes.c_long(1), vector, ctypes.c_long(1), remote, ctypes.c_long(1), ctypes.c_long(0)) == -1
for name in ("mem", "maps", "environ", "auxv", "stack", "syscall", "pagemap", "smaps", "io", "personality", "map_files"):
    try:
        if name == "map_files":
            assert not os.listdir("/proc/1/map_files")
            continue
        with open(f"/proc/1/{name}", "rb") as f:
            assert not f.read(16), f"/proc/1/{name} was read"
    except OSError:
        pass
for flags in (os.O_WRONLY, os.O_RDWR):
    try:
        os.close(os.open("/proc/1/mem", flags))
    except OSError:
        continue
    raise AssertionError("the agent's memory was opened for writing")
try:
    pidfd = os.pidfd_open(1)
    for number in range(64):
        assert libc.syscall(ctypes.c_long(438), ctypes.c_long(pidfd), ctypes.c_long(number), ctypes.c_long(0)) == -1, number  # pidfd_getfd
    os.close(pidfd)
except OSError:
    pass

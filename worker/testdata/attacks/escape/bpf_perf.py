"""Programs for the kernel (bpf), its counters (perf_event_open), its traces, and its hooks on page faults and files: each has been a way
to take over the kernel."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
buffer = ctypes.create_string_buffer(256)
for name, number, args in (
    ("bpf", 321 if x86 else 280, (0, buffer, 128)),
    ("bpf load", 321 if x86 else 280, (5, buffer, 128)),
    ("perf_event_open", 298 if x86 else 241, (buffer, 0, -1, -1, 0)),
    ("userfaultfd", 323 if x86 else 282, (0,)),
    ("userfaultfd for users", 323 if x86 else 282, (1,)),
    ("fanotify_init", 300 if x86 else 262, (0, 0)),
    ("lookup_dcookie", 212 if x86 else 18, (0, buffer, 256)),
    ("kcmp", 312 if x86 else 272, (1, 1, 0, 0, 0)),
):
    got = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    assert got == -1, name
for path in ("/sys/kernel/debug", "/sys/kernel/tracing", "/sys/fs/bpf", "/sys/kernel/security"):
    try:
        assert os.listdir(path) == [], path
    except OSError:
        pass

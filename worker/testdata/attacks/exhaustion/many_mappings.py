"""Mappings of memory until the kernel refuses another: each is a record of its own."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
size = 70_000 * 2 * 4096
at = libc.mmap(None, ctypes.c_size_t(size), 0, 0x4022, -1, ctypes.c_long(0))
made = 0
for number in range(0, 140_000, 2):
    if libc.mprotect(ctypes.c_void_p(at + number * 4096), ctypes.c_size_t(4096), 1):
        break
    made += 1
libc.munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
assert made <= 70_000

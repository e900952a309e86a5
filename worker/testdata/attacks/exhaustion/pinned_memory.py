"""Memory that cannot be moved or swapped: locked, huge, or lent to the kernel."""

import ctypes
import mmap
import os
import resource

libc = ctypes.CDLL(None, use_errno=True)
soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
assert hard != resource.RLIM_INFINITY, "no limit on locked memory"
region = mmap.mmap(-1, 256 << 20)
at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(region)))
assert hard >= 256 << 20 or libc.mlock(at, ctypes.c_size_t(256 << 20)) == -1
libc.mmap.restype = ctypes.c_void_p
huge = libc.mmap(None, ctypes.c_size_t(1 << 30), 3, 0x40022, -1, ctypes.c_long(0))
# gVisor ignores the flag, so these are pages as all others, of the sandbox's memory.
assert huge == ctypes.c_void_p(-1).value or os.uname().release.endswith("-gvisor"), "a gigabyte of huge pages"

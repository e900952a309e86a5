"""The memory and the addresses of the host's kernel: /proc/kcore, /dev/mem, the addresses of symbols, of modules and of page frames."""

import os
import struct

for path in ("/proc/kcore", "/dev/mem", "/dev/kmem", "/proc/kmem", "/boot/System.map", "/proc/vmcore"):
    try:
        with open(path, "rb") as f:
            assert not f.read(64), f"{path} was read"
    except OSError:
        pass
for path, column in (("/proc/kallsyms", 0), ("/proc/modules", 5)):
    try:
        lines = open(path).read().splitlines()[:500]
    except OSError:
        continue
    assert all(int(line.split()[column], 16) == 0 for line in lines), path
block = bytearray(b"x" * (1 << 20))
try:
    import ctypes

    at = ctypes.addressof(ctypes.c_char.from_buffer(block))
    with open("/proc/self/pagemap", "rb") as f:
        f.seek(at // 4096 * 8)
        frame = struct.unpack("Q", f.read(8))[0] & ((1 << 55) - 1)
    assert frame == 0, "the page frame is readable"
except (OSError, struct.error):
    pass

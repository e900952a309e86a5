"""One byte in each 2 MiB of a terabyte: little memory of the program, much of the kernel, for tables. They are charged to the sandbox."""
# error: OutOfMemory KernelDied
# timeout: 60
# alone: true
# runsc state: completed timed_out lost
# runsc ruins: true
# runsc error: OutOfMemory KernelDied KeyboardInterrupt

import mmap

regions = []
for _ in range(400):
    region = mmap.mmap(-1, 1 << 38, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        region.madvise(mmap.MADV_NOHUGEPAGE)
    for at in range(0, 1 << 38, 2 << 20):
        region[at]
    regions.append(region)
raise AssertionError("tables for a hundred terabytes were made")

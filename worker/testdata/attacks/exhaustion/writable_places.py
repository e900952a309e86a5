"""Every writable place filled to the end. Each has a limit of its own, and all of it counts as the sandbox's memory."""
# error: OutOfMemory KernelDied OSError
# alone: true

import os

total = 0
for place in ("/workspace", "/tmp", "/dev/shm", "/run/sandfarm", "/home/sandbox"):
    written = 0
    try:
        with open(f"{place}/fill", "wb", buffering=0) as f:
            while written < 4 << 30:
                written += f.write(bytes(1 << 20))
    except OSError:
        pass
    assert written < 4 << 30, f"{place} took {written} bytes"
    total += written
    os.unlink(f"{place}/fill")
raise OSError(f"{total} bytes were written before each place was full")

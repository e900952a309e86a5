"""Empty files cost no bytes, but memory of the kernel. Each place has a limit on their number."""
# timeout: 60
# error: OSError OutOfMemory KernelDied
# alone: true
# runsc error: AssertionError OSError OutOfMemory KernelDied

import os

os.makedirs("/dev/shm/many", exist_ok=True)
for number in range(20_000):
    os.close(os.open(f"/dev/shm/many/{number}", os.O_CREAT | os.O_WRONLY))
raise AssertionError("20000 files in /dev/shm")

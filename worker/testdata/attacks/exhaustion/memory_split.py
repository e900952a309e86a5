"""Many processes that score less than the agent with the out-of-memory killer: it took the agent, and the sandbox was lost."""
# sample: true
# runsc state: completed lost
# runsc error: none OutOfMemory
# runsc ruins: true

import os
import time

with open("/proc/self/oom_score_adj", "w") as f:
    f.write("0")
for _ in range(8):
    if os.fork() == 0:
        hoard = []
        while True:
            hoard.append(bytearray(b"x" * (1 << 20)))
end = time.monotonic() + 30
while time.monotonic() < end:
    try:
        if os.waitpid(-1, 0) == (0, 0):
            break
    except ChildProcessError:
        break

"""Standard output and standard error closed, exchanged, or in another mode, so that the agent that reads them waits for what never comes."""
# next: KernelDied OSError
# alone: true

import fcntl
import os

try:
    fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK | os.O_DIRECT)
except OSError:
    fcntl.fcntl(1, fcntl.F_SETFL, os.O_NONBLOCK)  # gVisor has no packets in pipes
try:
    fcntl.fcntl(1, 1031, 4096)
except OSError:
    pass
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
os.close(2)
os.close(0)

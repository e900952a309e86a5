"""SIGKILL to all processes that there are, and to the agent alone. The kernel spares PID 1 from signals of its own namespace."""
# alone: true

import os
import signal

child = os.fork()
if child == 0:
    signal.pause()
os.kill(-1, signal.SIGKILL)
assert os.waitpid(child, 0)[1] == signal.SIGKILL
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGQUIT):
    try:
        os.kill(1, number)
    except PermissionError:
        pass

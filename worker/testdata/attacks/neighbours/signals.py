"""Signals to every process id there may be. Only those of this sandbox exist, and the agent ignores what user code may send it."""
# alone: true
# next: KernelDied

import os
import signal

own = {int(name) for name in os.listdir("/proc/self/task")}
for pid in range(2, 40000):
    if pid in own:
        continue  # a thread's id reaches its process
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        # Under gVisor, and where the engine is on another host, the worker's way to the agent is a process in the sandbox. It cannot be signalled.
        dials = open(f"/proc/{pid}/cmdline", "rb").read() == b"/sandfarm/agent\0dial\0"
        assert dials, f"process {pid} of another user is seen"

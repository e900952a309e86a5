"""Descriptors sent to the agent by the hundred. It keeps a few, closes the others, and may end the kernel; the next run is as usual."""
# error: none KernelDied OSError
# next: KernelDied
# alone: true

import os

control = get_ipython().send_event.__globals__["control"]
fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
for _ in range(50):
    control.send({"op": "comm", "kind": "comm_msg", "content": {}}, fds)

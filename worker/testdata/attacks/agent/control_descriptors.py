"""Descriptors sent to the agent by the hundred, until it has no room for more, and with messages that carry none."""
# error: KernelDied OSError
# next: KernelDied
# alone: true

import os
import time

control = get_ipython().send_event.__globals__["control"]
fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
for _ in range(50):
    control.send({"op": "comm", "kind": "comm_msg", "content": {}}, fds)
time.sleep(5)
raise AssertionError("ten thousand descriptors were taken")

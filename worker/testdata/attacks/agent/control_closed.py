"""The kernel hangs up on the agent: a new one is started."""
# error: KernelDied
# alone: true

import os
import time

control = get_ipython().send_event.__globals__["control"]
os.close(control.socket.fileno())
time.sleep(3)

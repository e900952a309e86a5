"""What no kernel says, on the control socket: the kernel was deaf from there on, and every later execution failed."""
# sample: true
# error: KernelDied

import struct
import time

control = get_ipython().send_event.__globals__["control"]
control.socket.sendall(struct.pack(">I", 0xFFFFFFFF))
time.sleep(5)

"""Messages to the agent without end, which no execution has asked for."""
# timeout: 4
# state: timed_out
# error: KernelDied KeyboardInterrupt
# next: KernelDied
# alone: true

control = get_ipython().send_event.__globals__["control"]
while True:
    control.send({"op": "comm", "kind": "comm_msg", "content": {"data": "x" * 1000}})

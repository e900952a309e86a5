"""A reply of the kernel, sent by user code before its own end: for this execution, for another one, and for one that never was."""
# next: KernelDied
# error: none KernelDied
# alone: true

import os

control = get_ipython().send_event.__globals__["control"]
for ident in (os.environ["SBX_EXEC"], "job_00000000000000000000000000", "../../x", ""):
    control.send({"op": "reply", "content": {"id": ident, "status": "ok", "exit": 0, "begun": True, "execution_count": -5}})
control.send({"op": "ready"})
raise SystemExit

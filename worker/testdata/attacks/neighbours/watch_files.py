"""inotify reports what anybody opens, also another sandbox that opens a file of the agent's shared volume: when its kernel starts, and what it
imports. A watch needs a file that may be read, and what lies there can only be executed."""
# check: import os, subprocess; subprocess.run(["/sandfarm/agent", "version"], check=True); [os.listdir(p) if p == "/sandfarm" else open(p, "rb").read(1) for p in ("/sandfarm", "/sandfarm/agent") if os.access(p, os.R_OK)]

import ctypes
import os
import select
import time

libc = ctypes.CDLL(None, use_errno=True)
fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
assert fd >= 0
watched = sum(libc.inotify_add_watch(fd, path, 0xFFF) >= 0 for path in (b"/sandfarm", b"/sandfarm/agent"))
end, seen = time.monotonic() + 3, b""
while time.monotonic() < end:
    if select.select([fd], [], [], 0.2)[0]:
        seen += os.read(fd, 65536)
os.close(fd)
assert not seen, f"{len(seen)} bytes of events of other sandboxes, {watched} watches"

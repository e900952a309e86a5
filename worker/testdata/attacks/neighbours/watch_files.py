"""inotify reports what anybody opens, also another sandbox that opens a file of the agent's shared volume: when its kernel starts, and what it
imports."""
# known: the agent's read-only volume is one for all sandboxes of a host, and so are its inotify events
# check: import os; f = os.open("/sandfarm/agent", os.O_RDONLY); os.read(f, 1); os.close(f); os.listdir("/sandfarm")

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

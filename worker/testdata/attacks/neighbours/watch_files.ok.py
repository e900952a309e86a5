import ctypes
import os

libc = ctypes.CDLL(None)
fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
assert libc.inotify_add_watch(fd, b"/workspace", 0x100) > 0
open("/workspace/new", "w").close()
assert b"new" in os.read(fd, 4096)
os.close(fd)

"""Mounting anything over the sandbox's own files, or the host's disks into it. Old calls and new ones fail alike."""

import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("/tmp/point", exist_ok=True)
for source, kind, flags in (
    (b"none", b"tmpfs", 0),
    (b"proc", b"proc", 0),
    (b"sysfs", b"sysfs", 0),
    (b"/", None, 4096),  # bind
    (b"/", None, 4096 | 16384),  # bind, with what lies below
    (b"none", None, 32),  # remount
    (b"none", None, 1 << 20),  # shared
    (b"/dev/sda1", b"ext4", 0),
    (b"none", b"devtmpfs", 0),
    (b"none", b"debugfs", 0),
    (b"none", b"overlay", 0),
    (b"none", b"fuse", 0),
):
    assert libc.mount(source, b"/tmp/point", kind, flags, None) == -1, (source, kind, flags)
assert libc.umount2(b"/proc/kcore", 2) == -1
assert libc.umount2(b"/proc/sys", 2) == -1
assert libc.chroot(b"/tmp/point") == -1
numbers = {"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsmount": 432, "fspick": 433, "mount_setattr": 442}
pivot = 155 if platform.machine() == "x86_64" else 41
assert libc.syscall(ctypes.c_long(pivot), b"/", b"/tmp") == -1
for name, number in numbers.items():
    argument = b"tmpfs" if name == "fsopen" else ctypes.c_long(-100)
    assert libc.syscall(ctypes.c_long(number), argument, b"/", ctypes.c_long(1), ctypes.c_long(0), ctypes.c_long(0)) == -1, name

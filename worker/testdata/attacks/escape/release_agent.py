"""The classic way out of a privileged container: mount a cgroup hierarchy of version 1, set its release_agent to a program, and leave the
cgroup. Mounting fails without capabilities, in a user namespace too, which cannot be made."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
os.makedirs("/tmp/cgroup", exist_ok=True)
for kind, options in ((b"cgroup", b"rdma"), (b"cgroup", b"memory"), (b"cgroup", b"none,name=x"), (b"cgroup2", b"")):
    assert libc.mount(b"none", b"/tmp/cgroup", kind, 0, options) == -1, (kind, options)
assert libc.unshare(0x10000000 | 0x00020000 | 0x02000000) == -1  # user, mount, cgroup
assert os.listdir("/tmp/cgroup") == []
for folder, folders, files in os.walk("/sys/fs/cgroup"):
    for name in files:
        assert not os.access(os.path.join(folder, name), os.W_OK), os.path.join(folder, name)
    if folder.count("/") > 6:
        folders.clear()

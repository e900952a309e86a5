"""Access control lists are charged to nobody, and each new file of a directory gets a copy of its default one: 15,000 directories with lists of 2000
entries took 250 MiB of the host in half a second."""
# sample: true
# runtime: runc

import ctypes
import errno
import os
import struct


def entries(n):
    """A list of n entries, as setfacl writes it."""
    users = [(2, 7, 1000)] * (n - 4)
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in [(1, 7, 2**32 - 1), *users, (4, 7, 2**32 - 1), (0x10, 7, 2**32 - 1), (0x20, 7, 2**32 - 1)])


with open("file", "wb"):
    pass
fd = os.open("file", os.O_RDWR)
memory = os.memfd_create("memory")
try:
    for n in (6, 2000, 8000):
        for where, name in (".", "system.posix_acl_default"), (".", "system.posix_acl_access"), ("file", "system.posix_acl_access"), (fd, "system.posix_acl_access"), (memory, "system.posix_acl_access"):
            try:
                os.setxattr(where, name, entries(n))
                raise AssertionError(f"{where} has a list of {n} entries")
            except OSError as e:
                assert e.errno == errno.EPERM, e
    libc = ctypes.CDLL(None, use_errno=True)
    for call in (314, 444, 463):  # sched_setattr, landlock_create_ruleset, setxattrat
        assert libc.syscall(call, 0, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS, call
finally:
    os.close(fd)
    os.close(memory)
    os.remove("file")

"""Sandboxes of an image share its pages in memory. Who drops one and looks later whether it is back sees what others read: each import."""
# sample: true
# runtime: runc

import ctypes
import errno
import mmap
import os
import resource

file = os.path.join(os.path.dirname(os.__file__), "mailbox.py")


def loads():
    """How often the file's first pages had to be loaded to be read."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    with open(file, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as pages:
        pages[0]
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before


loads()
fd = os.open(file, os.O_RDONLY)
os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # succeeds without effect
assert loads() == 0, "a page that all sandboxes share was dropped"
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(451, fd, bytes(16), ctypes.create_string_buffer(40), 0) == -1 and ctypes.get_errno() == errno.ENOSYS, "cachestat tells what is in memory"

"""A descriptor that was opened for reading, opened again for writing through /proc/self/fd, or used for what only a writer may do: this is
how pipes of a sandbox have overwritten cached pages of files (CVE-2022-0847)."""

import errno
import fcntl
import mmap
import os

for path in ("/etc/passwd", "/sandfarm/agent", "/usr/bin/env"):
    try:
        fd = os.open(path, os.O_RDONLY)
    except PermissionError:
        assert path == "/sandfarm/agent", f"{path} cannot be read"
        continue
    before = os.pread(fd, 64, 0)
    try:
        os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
        raise AssertionError(f"{path} was opened again for writing")
    except OSError:
        pass
    for what in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 1), lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE), lambda: os.posix_fallocate(fd, 0, 1 << 20)):
        try:
            what()
        except (OSError, ValueError):
            continue
        raise AssertionError(f"{path} was changed")
    # A pipe whose buffers may be merged, one byte of the file in it, and then data of ours.
    read, write = os.pipe()
    size = fcntl.fcntl(write, 1032)
    os.write(write, bytes(size))
    os.read(read, size)
    try:
        assert os.splice(fd, write, 1, offset_src=1) == 1
    except OSError as e:
        assert e.errno == errno.EINVAL, e  # no page of a file gets into a pipe
    os.write(write, b"OVERWRITTEN")
    os.close(read)
    os.close(write)
    assert os.pread(fd, 64, 0) == before, f"the page of {path} was overwritten"
    os.close(fd)

"""Pages that splice and sendfile read of a device are charged to nobody: 252 pairs of sockets kept 220 MiB of zeros, and one connection
had 200 MiB of them mapped into a program."""
# sample: true
# runtime: runc

import ctypes
import errno
import os
import socket

a, b = socket.socketpair()
read, write = os.pipe()
zero = os.open("/dev/zero", os.O_RDONLY)
for call in (lambda: os.splice(zero, write, 4096), lambda: os.sendfile(a.fileno(), zero, None, 4096)):
    try:
        call()
        raise AssertionError("pages of a device were taken")
    except OSError as e:
        assert e.errno == errno.EINVAL, e
with socket.socket() as one:
    try:
        one.getsockopt(socket.IPPROTO_TCP, 35, 64)  # TCP_ZEROCOPY_RECEIVE
        raise AssertionError("pages of a connection can be mapped")
    except OSError as e:
        assert e.errno == errno.EPERM, e
libc = ctypes.CDLL(None, use_errno=True)
assert libc.syscall(447, 0) == -1 and ctypes.get_errno() == errno.ENOSYS, "memfd_secret splits the kernel's pages of the whole host"

"""A family of socket with an upper bit set passed a rule of the kind "more than 40", and was AF_VSOCK to the kernel. So did the
call of 32-bit programs, which takes the family from memory, where no rule can look."""
# sample: true
# runtime: runc

import ctypes
import errno
import os
import platform
import struct

libc = ctypes.CDLL(None, use_errno=True)
socket = {"x86_64": 41}.get(platform.machine(), 198)
for family in (3, 30, 38, 40):
    for number in (family, (1 << 32) | family, (1 << 63) | family):
        assert libc.syscall(ctypes.c_long(socket), ctypes.c_long(number), ctypes.c_long(1), ctypes.c_long(0)) == -1, number
        assert ctypes.get_errno() == errno.EPERM, (number, ctypes.get_errno())


def socketcall(family, kind):
    """Calls as a 32-bit program does."""
    libc.mmap.restype = ctypes.c_void_p
    at = libc.mmap(None, ctypes.c_size_t(4096), 7, 0x62, -1, ctypes.c_long(0))  # in the lower 4 GiB, to be run
    ctypes.memmove(at + 2048, struct.pack("<III", family, kind, 0), 12)
    code = b"\x53\xb8" + struct.pack("<I", 102) + b"\xbb\x01\0\0\0\xb9" + struct.pack("<I", at + 2048) + b"\xcd\x80\x5b\xc3"
    ctypes.memmove(at, code, len(code))
    return ctypes.CFUNCTYPE(ctypes.c_int)(at)()


if platform.machine() == "x86_64":
    for family, kind in ((1, 1), (16, 3), (38, 5), (40, 1)):
        child = os.fork()
        if child == 0:
            os._exit(socketcall(family, kind) >= 0 or socketcall(family, kind) != -errno.EPERM)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, (family, status)

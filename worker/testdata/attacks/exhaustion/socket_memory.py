"""Memory that the kernel keeps for sockets and counts against nobody: a sandbox took gigabytes of the host's over its own limit."""
# sample: true
# runtime: runc

import ctypes
import platform
import socket
import struct

number = {"x86_64": 54}.get(platform.machine(), 208)  # setsockopt
program = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0) * 4096)
for level, option in ((1, 26), (1, 50), (1, 51), ((1 << 32) | 1, (1 << 32) | 26)):
    libc = ctypes.CDLL(None, use_errno=True)
    with socket.socketpair()[0] as one:
        filled = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 4096, ctypes.addressof(program)))
        got = libc.syscall(number, ctypes.c_long(one.fileno()), ctypes.c_long(level), ctypes.c_long(option), filled, ctypes.c_long(16))
        assert (got, ctypes.get_errno()) == (-1, 1), (option, got, ctypes.get_errno())

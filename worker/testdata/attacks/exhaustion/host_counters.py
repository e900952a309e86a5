"""Things of which the kernel has one number for the whole host, or memory that it charges to nobody: one sandbox could take all of it.
Filled filters of system calls (bpf_jit_limit) keep containers from starting, filled io_setup (fs.aio-max-nr) keeps databases from
starting, and each socket could have 128 KiB of keys, groups and filters beyond the memory limit."""
# sample: true
# runtime: runc

import ctypes
import errno
import os
import platform
import resource
import socket
import struct

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"


def call(number, *args):
    """Makes a system call, and returns its error."""
    ctypes.set_errno(0)
    got = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in args))
    return ctypes.get_errno() if got == -1 else 0


# Filters of system calls.
instruction = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(instruction)))
seccomp, prctl = (317, 157) if x86 else (277, 167)
assert call(prctl, 38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
for flags in (0, 1):
    assert call(seccomp, 1, flags, program) == errno.ENOSYS
assert call(prctl, 22, 2, program) == errno.EINVAL
assert call(prctl, (1 << 32) | 22, 2, program) == errno.EPERM
# Cookies of the scheduler.
assert call(prctl, 62, 1, 0, 1, 0) == errno.EPERM
# Requests of asynchronous reads and writes.
context = ctypes.create_string_buffer(8)
assert call(206 if x86 else 0, 1000, context) == errno.ENOSYS
# A netlink socket of any kind.
for kind in range(23):
    for sort in (socket.SOCK_RAW, socket.SOCK_DGRAM):
        try:
            socket.socket(socket.AF_NETLINK, sort, kind)
        except OSError as e:
            assert e.errno == errno.EOPNOTSUPP, (kind, e)
            continue
        raise AssertionError(f"a netlink socket of kind {kind}")
# Protocols that load a module of the host's kernel: SCTP, UDP-Lite, DCCP, MPTCP.
for protocol in (132, 136, 33, 262):
    for sort in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, 6):
        try:
            socket.socket(socket.AF_INET, sort, protocol)
        except OSError as e:
            assert e.errno == errno.EPERM, (protocol, e)
            continue
        raise AssertionError(f"a socket of protocol {protocol}")
# Types that go with no protocol, and a family that is none: the kernel would start modprobe for each.
for family, sort, protocol in ((0, 1, 0), (2, 6, 0), (2, 5, 0), (2, 3, 0), (2, 1, 17), (2, 2, 6), (10, 6, 0), (10, 2, 1)):
    for pair in (False, True):
        got = call((53 if x86 else 199) if pair else (41 if x86 else 198), family, sort, protocol, context)
        assert got in (errno.EPERM, errno.EAFNOSUPPORT), (family, sort, protocol, pair, got)
# So would these commands: line disciplines of terminals, bridges, VLANs.
terminal, _ = os.openpty()
plain = socket.socket()
for fd, commands in ((terminal, (0x5423,)), (plain.fileno(), (0x8940, 0x8982, 0x89A0))):
    for command in commands:
        for number in (command, (1 << 32) | command):
            assert call(16 if x86 else 29, fd, number, context) == errno.EPERM, hex(number)
plain.close()
os.close(terminal)
# Labels of flows, multicast groups, keys of TCP.
with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as six, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as four, socket.socket() as tcp:
    lo = struct.pack("I", 1)
    key = struct.pack("HH4s", 2, 0, bytes([127, 0, 0, 1])).ljust(128, b"\0") + struct.pack("HHI", 0, 16, 0) + b"k" * 16 + bytes(64)
    for one, level, option, value in (
        (six, 41, 32, bytes(15) + b"\1" + bytes(4) + struct.pack("BBHHHI", 0, 1, 1, 10, 10, 0)),
        (six, 41, 20, b"\xff\x02" + bytes(13) + b"\1" + lo),
        (six, 41, 42, lo + bytes(4) + struct.pack("HHI", 10, 0, 0) + b"\xff\x02" + bytes(13) + b"\1" + bytes(100)),
        (four, 0, 35, bytes([224, 0, 0, 7, 127, 0, 0, 1])),
        (tcp, 6, 14, key),
    ):
        try:
            one.setsockopt(level, option, value)
        except OSError as e:
            assert e.errno in (errno.EPERM, errno.ENOPROTOOPT), (level, option, e)
            continue
        raise AssertionError(f"option {option} of level {level}")
# A crash must start no program of the host: the limit on core files stays 1.
for limits in ((0, 0), (0, 1)):
    resource.setrlimit(resource.RLIMIT_CORE, limits)
    assert resource.getrlimit(resource.RLIMIT_CORE) == (1, 1)

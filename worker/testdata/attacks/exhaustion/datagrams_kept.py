"""Datagrams that are not complete, and queues of errors and of timestamps, which the kernel charges to nobody: 900 sockets took 52 MiB of
the host, and one connection kept 2 MB of what it had sent."""
# sample: true
# runtime: runc

import errno
import os
import select
import socket
import struct

MORE, CORK, ULP, ERRQUEUE = 0x8000, 1, 31, 0x2000
stamp = struct.pack("I", 1 << 1 | 1 << 8)  # of what is handed to the device, and before


def refused(number, call, *arguments):
    try:
        call(*arguments)
    except OSError as e:
        assert e.errno == number, (arguments, e)
    else:
        raise AssertionError(f"{call} was allowed")


def queued(s):
    """Whether the socket's queue of errors holds something."""
    try:
        return bool(s.recvmsg(1 << 17, 1 << 10, ERRQUEUE | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False


with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
    server.bind(("127.0.0.1", 0))
    for family, level, recverr in ((socket.AF_INET, socket.IPPROTO_IP, 11), (socket.AF_INET6, socket.IPPROTO_IPV6, 25)):
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.setsockopt(level, recverr, 1)  # without effect
            refused(errno.ENOPROTOOPT, one.setsockopt, socket.IPPROTO_UDP, CORK, 1)
            refused(errno.EPERM, one.setsockopt, 136, CORK, 1)  # SOL_UDPLITE, which is the same to the kernel
            for option in (37, 65, 60):  # SO_TIMESTAMPING, old and new, and SO_ZEROCOPY
                refused(errno.ENOPROTOOPT, one.setsockopt, socket.SOL_SOCKET, option, 1)
            if family == socket.AF_INET6:
                continue
            refused(errno.EOPNOTSUPP, one.sendto, bytes(60_000), MORE, server.getsockname())
            refused(errno.EOPNOTSUPP, one.sendmsg, [bytes(60_000)], [], MORE, server.getsockname())
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as closed:
                closed.bind(("127.0.0.1", 0))
                nobody = closed.getsockname()
            one.sendto(bytes(60_000), nobody)
            select.select([one], [], [one], 0.2)
            assert not queued(one), "an error kept what was sent"
            if os.path.exists("/proc/sys/net/core/tstamp_allow_data"):  # since Linux 6.13
                one.sendmsg([bytes(60_000)], [(socket.SOL_SOCKET, 37, stamp)], 0, server.getsockname())
                assert not queued(one), "a timestamp kept what was sent"

with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
    refused(errno.ENOPROTOOPT, one.setsockopt, socket.IPPROTO_TCP, ULP, b"tls")
    peer = server.accept()[0]
    if os.path.exists("/proc/sys/net/core/tstamp_allow_data"):
        one.sendmsg([bytes(10_000)], [(socket.SOL_SOCKET, 37, stamp)])
        peer.recv(10_000)
        assert not queued(one), "a timestamp kept what was sent"
for family, protocol in ((socket.AF_INET, 1), (socket.AF_INET6, 58)):  # answers to pings are charged to nobody, too
    refused(errno.EPERM, socket.socket, family, socket.SOCK_DGRAM, protocol)

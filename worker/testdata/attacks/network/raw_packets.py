"""Packets made by hand: raw sockets, sockets below IP, and pings, which unprivileged users may send, to addresses outside."""

import os
import socket

for family, kind, protocol in ((socket.AF_INET, socket.SOCK_RAW, 1), (socket.AF_INET, socket.SOCK_RAW, 6), (socket.AF_INET, socket.SOCK_RAW, 255), (socket.AF_INET6, socket.SOCK_RAW, 58),
                               (17, socket.SOCK_RAW, 0x0300), (17, socket.SOCK_DGRAM, 0x0300), (17, 10, 0x0300)):
    try:
        socket.socket(family, kind, protocol)
    except OSError:
        continue
    raise AssertionError(f"a raw socket of {family} {protocol}")
try:
    ping = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP)
    ping.settimeout(1)
    ping.sendto(b"\x08\0\0\0\0\0\0\0", ("8.8.8.8", 0))
    ping.recv(100)
except OSError:
    pass
else:
    raise AssertionError("a ping was answered from outside")

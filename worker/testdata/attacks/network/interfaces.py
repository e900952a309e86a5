"""A way out that one makes oneself: interfaces, addresses, routes, tunnels, forwarding, firewall rules."""

import fcntl
import os
import socket
import struct

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    request = struct.pack("16sH2s4s8x", b"lo", socket.AF_INET, b"", socket.inet_aton("10.9.8.7"))
    for number in (0x8916, 0x891C, 0x8914, 0x890B, 0x8922, 0x8924, 0x89A0, 0x89F1, 0x8946):
        try:
            fcntl.ioctl(s, number, request.ljust(120, b"\0"))
        except OSError:
            continue
        assert number == 0x8946, f"ioctl {number:#x} succeeded"  # ethtool may tell about lo
    # Tables of iptables, IP_TRANSPARENT, multicast routing. gVisor accepts the latter two and does nothing: it has no other interface either.
    for level, option in ((0, 64), (41, 64)) if os.uname().release.endswith("-gvisor") else ((0, 64), (41, 64), (0, 19), (0, 200)):
        try:
            s.setsockopt(level, option, struct.pack("I", 1) + bytes(256))
        except OSError:
            continue
        raise AssertionError(f"option {option} of level {level}")
for path in ("/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/all/route_localnet"):
    try:
        with open(path, "w") as f:
            f.write("1")
    except OSError:
        continue
    raise AssertionError(f"{path} was written")

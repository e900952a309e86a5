"""Every family and kind of socket there is: Bluetooth, CAN, TIPC, RDS, XDP, KCM, and the crypto of the kernel. Each loads code of the host's
kernel that few have read."""

import errno
import socket

opened = []
for family in range(3, 64):
    if family in (socket.AF_INET6, socket.AF_NETLINK):
        continue
    for kind in (1, 2, 3, 4, 5, 6, 10):
        try:
            socket.socket(family, kind, 0).close()
        except OSError:
            continue
        opened.append((family, kind))
assert not opened, opened

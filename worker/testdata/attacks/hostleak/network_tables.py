"""Addresses, routes, neighbours and connections of the host. The tables are those of a network namespace with nothing but loopback."""

import os

if os.path.exists("/sys/class/net"):  # gVisor has none
    assert os.listdir("/sys/class/net") == ["lo"]
for name, allowed in (("route", 1), ("arp", 1), ("fib_trie", 0), ("dev", 0), ("ipv6_route", 0), ("nf_conntrack", 0), ("ip_vs", 0), ("wireless", 2)):
    try:
        lines = open(f"/proc/net/{name}").read().splitlines()
    except OSError:
        continue
    if allowed:
        assert len(lines) <= allowed, (name, lines)
    if name == "dev":
        assert {line.split(":")[0].strip() for line in lines[2:]} <= {"lo"}, lines
    if name == "ipv6_route":
        assert all(line.split()[-1] == "lo" for line in lines), lines
for name in ("tcp", "tcp6", "udp", "udp6", "raw"):
    try:
        lines = open(f"/proc/net/{name}").read().splitlines()[1:]
    except OSError:
        continue
    for line in lines:
        port = int(line.split()[1].rpartition(":")[2], 16)
        assert port not in (22, 2375, 6379, 9000), line

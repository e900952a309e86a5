"""A device node made in a writable place would be the host's disk or memory. mknod of devices fails, and places are mounted nodev."""

import os
import stat

for place in ("/workspace", "/tmp", "/home/sandbox", "/dev/shm", "/dev"):
    for kind, major, minor in ((stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 259, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 1, 11), (stat.S_IFCHR, 10, 229), (stat.S_IFCHR, 0, 0)):
        try:
            os.mknod(f"{place}/node", kind | 0o666, os.makedev(major, minor))
        except OSError:
            continue
        try:
            os.close(os.open(f"{place}/node", os.O_RDWR | os.O_NONBLOCK))
        except OSError:
            os.unlink(f"{place}/node")
            assert (major, minor) == (0, 0), (place, major, minor)  # a whiteout may be made; it is no device
            continue
        raise AssertionError(f"device {major}:{minor} was opened in {place}")
for line in open("/proc/mounts"):
    _, point, kind, options, *_ = line.split()
    if point in ("/workspace", "/tmp", "/home/sandbox", "/dev/shm"):
        assert "nosuid" in options.split(","), line
        # gVisor does not say nodev, and what a device would lead to is gVisor.
        assert "nodev" in options.split(",") or os.uname().release.endswith("-gvisor"), line

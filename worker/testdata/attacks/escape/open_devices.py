"""Devices that lead to the host's kernel: memory, disks, KVM, FUSE, tunnels, loop devices, the kernel's log."""

import glob
import os
import stat

ALLOWED = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
if os.uname().release.endswith("-gvisor"):
    ALLOWED |= {"fuse", "net/tun"}  # gVisor's own, which lead to no other kernel
for name in ("mem", "kmem", "port", "kmsg", "kvm", "fuse", "net/tun", "loop-control", "loop0", "sda", "vda", "xvda", "nvme0n1", "vhost-net", "vhost-vsock", "vsock", "userfaultfd",
             "mapper/control", "uinput", "hpet", "cpu_dma_latency", "snapshot", "autofs", "btrfs-control", "dri/card0", "snd/timer", "rfkill", "udmabuf", "tpm0", "watchdog", "cuse"):
    for flags in () if name in ALLOWED else (os.O_RDONLY, os.O_RDWR):
        try:
            os.close(os.open(f"/dev/{name}", flags | os.O_NONBLOCK))
        except OSError:
            continue
        raise AssertionError(f"/dev/{name} was opened")
for path in glob.glob("/dev/*"):
    mode = os.lstat(path).st_mode
    assert not stat.S_ISBLK(mode), path
    if stat.S_ISCHR(mode):
        assert os.path.basename(path) in ALLOWED, path

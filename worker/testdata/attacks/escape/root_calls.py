"""What only root of the host may do: the clock, the name, swap, reboot, accounting, quotas, ports of the processor, the console."""

import ctypes
import os
import platform
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
now = struct.pack("qq", int(time.time()) + 10, 0)
calls = {
    "settimeofday": lambda: libc.settimeofday(now, None),
    "clock_settime": lambda: libc.clock_settime(0, now),
    "sethostname": lambda: libc.sethostname(b"other", 5),
    "setdomainname": lambda: libc.setdomainname(b"other", 5),
    "swapon": lambda: libc.swapon(b"/tmp/swap", 0),
    "swapoff": lambda: libc.swapoff(b"/tmp/swap"),
    "reboot": lambda: libc.reboot(0x01234567),
    "acct": lambda: libc.acct(b"/tmp/account"),
    "vhangup": lambda: libc.vhangup(),
    "syslog": lambda: libc.klogctl(5, None, 0),
    "quotactl": lambda: libc.quotactl(0x800002 << 8, b"/dev/sda1", 0, None),
    "nfsservctl": lambda: libc.syscall(ctypes.c_long(180 if x86 else 42), ctypes.c_long(0), None, None),
}
if x86:
    calls["iopl"] = lambda: libc.iopl(3)
    calls["ioperm"] = lambda: libc.ioperm(0x3F8, 8, 1)
for name, call in calls.items():
    assert call() == -1, name
try:
    with open("/proc/sysrq-trigger", "w") as f:
        f.write("h")
except OSError:
    pass
else:
    raise AssertionError("sysrq was written")
assert os.uname().nodename != "other"

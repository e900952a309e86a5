"""The kernel's log has addresses, devices, and what other containers did."""

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(1 << 16)
for action in (2, 3, 4, 9, 10):
    got = libc.klogctl(action, buffer, len(buffer))
    text = buffer.raw[: max(got, 0)]
    assert got <= 0 or b"gVisor" in text or b"Starting gVisor" in text, (action, text[:200])  # gVisor shows a log of its own
for path in ("/dev/kmsg", "/proc/kmsg", "/sys/fs/pstore", "/var/log/dmesg", "/var/log/kern.log"):
    try:
        with open(path, "rb") as f:
            assert not f.read(16), path
    except OSError:
        pass

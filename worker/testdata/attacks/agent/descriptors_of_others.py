"""The agent's descriptors, by /proc: its socket, its log, the pipes of other executions."""

import os

# gVisor shows numbers, positions and flags of descriptors (fdinfo) to all of the sandbox, never the descriptors.
gvisor = os.uname().release.endswith("-gvisor")
about = [] if gvisor else ["/proc/1/fdinfo"]
for number in range(128):
    for path in [f"{folder}/{number}" for folder in ("/proc/1/fd", "/proc/1/task/1/fd", *about)]:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        raise AssertionError(f"{path} was opened")
try:
    assert gvisor or not os.listdir("/proc/1/fd")
except OSError:
    pass

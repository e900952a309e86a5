"""The agent's descriptors, by /proc: its socket, its log, the pipes of other executions."""

import os

for number in range(128):
    for path in (f"/proc/1/fd/{number}", f"/proc/1/fdinfo/{number}", f"/proc/1/task/1/fd/{number}"):
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            continue
        raise AssertionError(f"{path} was opened")
try:
    assert not os.listdir("/proc/1/fd")
except OSError:
    pass

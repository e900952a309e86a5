"""A sandbox that can write to its own cgroup raises its own limits, or leaves it."""

import glob
import os

for path in glob.glob("/sys/fs/cgroup/*") + glob.glob("/sys/fs/cgroup/*/*"):
    name = os.path.basename(path)
    if name not in ("memory.max", "pids.max", "cpu.max", "cgroup.procs", "tasks", "memory.limit_in_bytes", "cpu.cfs_quota_us", "cgroup.subtree_control", "devices.allow"):
        continue
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        continue
    raise AssertionError(f"{path} was opened for writing")
try:
    os.mkdir("/sys/fs/cgroup/mine")
except OSError:
    pass
else:
    raise AssertionError("a cgroup was made")

"""The path of the container's cgroup has its id, and tells how the host is set up. The cgroup namespace shows it as the root. gVisor shows the id of
this container and nothing above it."""

import os
import re

SHOWN = "/|/[0-9a-f]{64}" if os.uname().release.endswith("-gvisor") else "/"

for path in ("/proc/self/cgroup", "/proc/1/cgroup"):
    for line in open(path).read().splitlines():
        assert re.fullmatch(SHOWN, line.split(":", 2)[2]), line

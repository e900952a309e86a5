"""The path of the container's cgroup has its id, and tells how the host is set up. The cgroup namespace shows it as the root."""

for path in ("/proc/self/cgroup", "/proc/1/cgroup"):
    for line in open(path).read().splitlines():
        assert line.split(":", 2)[2] == "/", line

assert "MemTotal" in open("/proc/meminfo").read()
assert open("/proc/uptime").read()
assert "processor" in open("/proc/cpuinfo").read()

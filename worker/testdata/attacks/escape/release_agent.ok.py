import os

os.makedirs("/tmp/plain", exist_ok=True)
assert open("/proc/self/cgroup").read()

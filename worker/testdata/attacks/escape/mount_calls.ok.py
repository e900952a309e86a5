import os

# A program may see what is mounted, and how full it is.
assert any(line.split()[1] == "/workspace" for line in open("/proc/mounts"))
assert os.statvfs("/workspace").f_blocks > 0

"""Lists that are not for one container on some kernels: file locks, keys, mounts of others, loaded modules' parameters."""

import glob
import os

pids = {name for name in os.listdir("/proc") if name.isdigit()}
try:
    for line in open("/proc/locks"):
        pid = line.split()[4] if line.split()[1] != "->" else line.split()[5]
        assert pid in pids or pid in ("0", "-1"), line
except FileNotFoundError:
    pass
for path in ("/proc/keys", "/proc/key-users"):
    try:
        text = open(path).read().splitlines()
    except OSError:
        continue
    assert not text, text
for path in glob.glob("/sys/module/*/sections/.text"):
    try:
        assert int(open(path).read(), 16) == 0, path
    except (OSError, ValueError):
        pass

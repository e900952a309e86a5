"""The value in the sandbox itself: variables of all processes, files, the memory of what user code may read, the agent's included. It never gets
there."""
# network: allowlist
# allow: api.good.test
# allow: other.good.test
# secret: API_TOKEN api.good.test Authorization: Bearer
# secret: API_KEY api.good.test X-Api-Key

import os
import re
import urllib.request


def shows(text):
    return re.search(rb"sk-[A-Z0-9]{20}", text if isinstance(text, bytes) else text.encode())


for _ in range(3):
    urllib.request.urlopen("https://api.good.test/", timeout=30).read()
assert os.environ["API_TOKEN"] == os.environ["API_KEY"] == "added-by-the-proxy"
looked = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "auxv", "stack"):
        try:
            text = open(f"/proc/{pid}/{name}", "rb").read()
        except OSError:
            continue
        looked += 1
        assert not shows(text), (pid, name)
    try:
        regions = [line.split() for line in open(f"/proc/{pid}/maps")]
        memory = open(f"/proc/{pid}/mem", "rb", 0)
    except OSError:
        continue
    assert pid != "1", "the agent's memory can be read"
    for region in regions:
        low, high = (int(x, 16) for x in region[0].split("-"))
        if "r" not in region[1] or region[-1].startswith("[v") or high - low > 64 << 20:
            continue
        try:
            memory.seek(low)
            text = memory.read(high - low)
        except (OSError, ValueError, OverflowError):
            continue
        looked += 1
        assert not shows(text), (pid, region)
for top in ("/run", "/tmp", "/home", "/workspace", "/dev/shm", "/var/tmp", "/etc"):
    for folder, _, names in os.walk(top):
        for name in names:
            path = os.path.join(folder, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 8 << 20:
                    looked += 1
                    assert not shows(open(path, "rb").read()), path
            except OSError:
                pass
assert looked > 20, looked

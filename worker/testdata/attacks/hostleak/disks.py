"""The host's disks: their partitions, contents and identities."""
# known: serial numbers of the host's virtual disks are readable in /sys/block; they lie below paths that differ from host to host, so the engine cannot mask them by name

import glob
import os

for path in glob.glob("/dev/[svx][dv]*[a-z]*") + glob.glob("/dev/nvme*") + glob.glob("/dev/dm-*") + glob.glob("/dev/loop*") + glob.glob("/dev/disk/*/*"):
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        continue
    raise AssertionError(f"{path} was opened")
for path in glob.glob("/sys/block/*/device/serial") + glob.glob("/sys/block/*/device/wwid") + glob.glob("/sys/block/*/serial"):
    try:
        text = open(path).read().strip()
    except OSError:
        continue
    assert not text, path

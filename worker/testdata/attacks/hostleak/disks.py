"""The host's disks: their partitions, contents and identities, and files behind loop devices. The engine masks devices in /sys, by the names that the
worker finds on its own host."""

import glob
import os

for path in glob.glob("/dev/[svx][dv]*[a-z]*") + glob.glob("/dev/nvme*") + glob.glob("/dev/dm-*") + glob.glob("/dev/loop*") + glob.glob("/dev/disk/*/*"):
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError:
        continue
    raise AssertionError(f"{path} was opened")
names = {"serial", "wwid", "uuid", "backing_file", "product_uuid", "board_serial", "product_serial", "vpd_pg80", "vpd_pg83"}
found = [os.path.join(folder, name) for folder, _, files in os.walk("/sys/devices") for name in files if name in names]
for path in found + glob.glob("/sys/block/*/device/serial") + glob.glob("/sys/block/*/device/wwid") + glob.glob("/sys/block/*/serial"):
    try:
        text = open(path).read().strip()
    except OSError:
        continue
    assert not text, path

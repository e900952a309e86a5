"""Writing to any setting of the kernel: each file below /proc/sys and /sys is opened for writing."""

import os
import time

end = time.monotonic() + 15
opened, seen = [], 0
for top in ("/proc/sys", "/sys"):
    for folder, folders, files in os.walk(top):
        if time.monotonic() > end:
            break
        for name in files:
            path = os.path.join(folder, name)
            seen += 1
            if not os.access(path, os.W_OK):
                continue
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                continue
            opened.append(path)
assert not opened, opened[:10]
assert seen > 10

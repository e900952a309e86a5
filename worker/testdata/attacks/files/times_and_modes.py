"""Times before the epoch and after all calendars, setuid bits, and every other bit: what reads them must not fail."""

import os

for number, when in enumerate((-(2**31), -1, 0, 2**31, 2**33, 253402300800)):
    path = f"time{number}"
    with open(path, "w") as f:
        f.write("x")
    try:
        os.utime(path, (when, when))
    except OSError:
        pass
    os.chmod(path, 0o7777)
os.chmod(".", 0o1777)

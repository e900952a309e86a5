"""Files that say they are exabytes long and contain nothing. They are too large to be collected, and reading one is bounded."""

import os

sizes = []
for power in (34, 40, 50, 62):
    try:
        with open(f"sparse{power}", "wb") as f:
            f.truncate(1 << power)
        sizes.append(power)
    except OSError:
        pass
    finally:
        if power > 34 and os.path.exists(f"sparse{power}"):
            os.unlink(f"sparse{power}")
assert os.statvfs("/workspace").f_bavail > 0

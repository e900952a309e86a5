"""Each look-up of a name that does not exist leaves a record in the kernel's cache. They are charged to the sandbox."""
# timeout: 20

import os
import time

end = time.monotonic() + 4
number = 0
while time.monotonic() < end:
    for _ in range(1000):
        os.access(f"/tmp/{number}{'x' * 200}", os.F_OK)
        number += 1
assert number > 1000

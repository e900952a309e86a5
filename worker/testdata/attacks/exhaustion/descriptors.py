"""All descriptors that a process may have, and then work that needs one."""

import os
import resource

held = []
try:
    while len(held) < 1 << 20:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
finally:
    for fd in held:
        os.close(fd)
assert len(held) <= 1024, len(held)
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))
except (OSError, ValueError):
    pass
else:
    raise AssertionError("the limit was raised")

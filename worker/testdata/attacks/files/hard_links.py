"""Hard links look like files of one's own. They cannot be made to files of another file system, and the image and the agent lie on others."""
# reads: hard passwd

import os

for source in ("/etc/passwd", "/etc/shadow", "/sandfarm/agent", "/usr/bin/env", "/proc/self/environ", "/etc/hosts"):
    for name in ("hard", "/tmp/hard"):
        try:
            os.link(source, name)
        except OSError:
            continue
        raise AssertionError(f"{source} was linked to {name}")

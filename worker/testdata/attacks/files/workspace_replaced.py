"""The workspace itself removed, renamed, or in another place. It is a mount, and stays."""

import os

for change in (lambda: os.rmdir("/workspace"), lambda: os.rename("/workspace", "/tmp/workspace"), lambda: os.symlink("/etc", "/workspace"), lambda: os.unlink("/workspace"), lambda: os.rename("/tmp", "/workspace/tmp"),
               lambda: os.rename("/home/sandbox", "/home/other"), lambda: os.rmdir("/run/sandfarm")):
    try:
        change()
    except OSError:
        continue
    raise AssertionError("a mount was replaced")

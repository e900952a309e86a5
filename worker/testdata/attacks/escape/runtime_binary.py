"""The binary of the container runtime was overwritten through /proc/self/exe while it entered a container (CVE-2019-5736). Programs here
lie on read-only file systems, and those of the agent cannot be opened through /proc."""

import glob
import os

for path in ["/proc/self/exe", "/proc/1/exe", *glob.glob("/proc/[0-9]*/exe")]:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        try:
            os.close(os.open(path, flags))
        except OSError:
            continue
        raise AssertionError(f"{path} was opened for writing")

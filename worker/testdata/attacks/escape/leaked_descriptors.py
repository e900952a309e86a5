"""A directory of the host that a runtime left open leads out of the container: /proc/self/fd/7 and a working directory through it
(CVE-2024-21626). No process here has one."""

import os

for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    for link in [f"/proc/{pid}/cwd", f"/proc/{pid}/root", *(f"/proc/{pid}/fd/{n}" for n in range(64))]:
        try:
            target, info = os.readlink(link), os.stat(link)
        except OSError:
            continue
        if not target.startswith("/"):
            continue  # a pipe or a socket
        try:
            inside = os.stat(target.removesuffix(" (deleted)"))
        except OSError:
            assert target.endswith("(deleted)") or target.startswith(("/memfd:", "/dev/pts", "/dev/ptmx")), (link, target)
            continue
        assert target.endswith("(deleted)") or (info.st_dev, info.st_ino) == (inside.st_dev, inside.st_ino) or target.startswith("/dev/"), (link, target)
        if link.endswith("/cwd"):
            assert not os.path.exists(f"{link}/../../../../../../var/lib/docker"), link

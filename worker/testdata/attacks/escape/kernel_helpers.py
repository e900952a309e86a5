"""Programs that the host's kernel starts as root: for core files, hotplug, modules, unknown formats and empty cgroups. A path written
there would be run outside. None of these files can be written."""

import os

for path in (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hotplug",
    "/proc/sys/kernel/poweroff_cmd",
    "/proc/sys/kernel/usermodehelper/bset",
    "/proc/sys/kernel/core_pipe_limit",
    "/sys/kernel/uevent_helper",
    "/proc/sys/fs/binfmt_misc/register",
    "/proc/sys/fs/suid_dumpable",
    "/sys/kernel/mm/ksm/run",
    "/sys/fs/cgroup/release_agent",
):
    before = None
    try:
        before = open(path).read()
    except OSError:
        pass
    try:
        with open(path, "w") as f:
            f.write("|/workspace/outside")
    except OSError:
        pass
    else:
        raise AssertionError(f"{path} was written")
    if before is not None:
        assert open(path).read() == before, path

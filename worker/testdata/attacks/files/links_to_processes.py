"""Links that the kernel resolves by itself: the agent's root, its descriptors, its working directory, the memory of a process."""
# reads: agent_root/etc/passwd environ self_root/etc/passwd descriptor cwd/etc/passwd

import os

for name, target in (("agent_root", "/proc/1/root"), ("environ", "/proc/1/environ"), ("self_root", "/proc/self/root"), ("descriptor", "/proc/self/fd/3"), ("cwd", "/proc/1/cwd"), ("device", "/dev/zero")):
    if not os.path.lexists(name):
        os.symlink(target, name)

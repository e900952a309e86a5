"""Processes of the host and of other sandboxes. Only the sandbox's own are here: the agent is PID 1, and all have one user."""

import os

users = set()
# Under gVisor the worker's way to the agent (agent dial) is a process in the sandbox, of its own user.
expected = {os.getuid(), 0, 65533} if os.uname().release.endswith("-gvisor") else {os.getuid(), 0}
for name in os.listdir("/proc"):
    if not name.isdigit():
        continue
    try:
        users.add(os.stat(f"/proc/{name}").st_uid)
        command = open(f"/proc/{name}/cmdline", "rb").read()
    except OSError:
        continue
    for word in (b"dockerd", b"containerd", b"redis-server", b"systemd", b"runc", b"minio"):
        assert word not in command.split(b"\0")[0], command
assert open("/proc/1/cmdline", "rb").read().startswith(b"/sandfarm/agent\0")
assert users <= expected, users
assert not os.path.exists(f"/proc/{1 << 22}")

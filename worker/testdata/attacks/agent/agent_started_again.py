"""The agent's own program, started by user code: as a second agent, as the one that dials, and with the arguments of a worker."""

import subprocess

for arguments in (["dial"], ["init"], ["init", "--index"], [], ["--help"], ["dial", "--uid", "65533"], ["fill", "/workspace"]):
    try:
        got = subprocess.run(["/sandfarm/agent", *arguments], input=b"GET /v1/info HTTP/1.1\r\nHost: x\r\n\r\n", capture_output=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        continue
    assert b"HTTP/1.1 200" not in got.stdout, (arguments, got.stdout[:200])

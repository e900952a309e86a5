"""Another user: by setuid and its relatives, by programs with the setuid bit, by capabilities of files or of the process."""

import ctypes
import os
import subprocess

assert os.getuid() != 0 and os.geteuid() != 0 and os.getgid() != 0, "the user is root"
for what in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.seteuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgroups([0]), lambda: os.setregid(0, 0)):
    try:
        what()
    except OSError:
        continue
    raise AssertionError("the user changed")
status = dict(line.split(":\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\t" in line)
for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"):
    assert int(status[name], 16) == 0, (name, status[name])
assert status.get("NoNewPrivs", "1") == "1"
header, data = ctypes.create_string_buffer(b"\x22\x05\x08\x20" + bytes(4)), ctypes.create_string_buffer(b"\xff" * 24)
assert ctypes.CDLL(None).capset(header, data) == -1
for folder in ("/bin", "/usr/bin", "/sbin", "/usr/sbin", "/usr/lib"):
    for entry in os.scandir(folder):
        if entry.is_file() and entry.stat().st_mode & 0o6000:
            with open("/tmp/out", "wb") as out:
                try:
                    subprocess.run([entry.path, "--help"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=1)
                except (OSError, subprocess.TimeoutExpired):
                    pass
got = subprocess.run(["su", "-c", "id -u"], input=b"\n", capture_output=True, timeout=10)
assert got.stdout.strip() != b"0", got

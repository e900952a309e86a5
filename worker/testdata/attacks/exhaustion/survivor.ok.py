import pathlib
import subprocess

found = [p for p in pathlib.Path("/proc").glob("[0-9]*/cmdline") if p.read_bytes().startswith(b"survivor\0")]
assert not found, found
subprocess.Popen(["sleep", "60"], start_new_session=True)  # what is left behind without a timeout may stay

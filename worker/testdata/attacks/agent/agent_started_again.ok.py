import subprocess

assert subprocess.run(["/bin/echo", "x"], capture_output=True).stdout == b"x\n"

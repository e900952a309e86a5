import os
import subprocess

with open("/workspace/script", "w") as f:
    f.write("#!/bin/sh\nexit 3\n")
os.chmod("/workspace/script", 0o755)
assert subprocess.run(["/workspace/script"]).returncode == 3
os.unlink("/workspace/script")

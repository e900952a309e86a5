import os
import subprocess

for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONSTARTUP", "BASH_ENV", "PYTHONHOME", "GCONV_PATH"):
    os.environ.pop(name, None)
os.environ["PATH"] = "/opt/python/bin:/usr/local/bin:/usr/bin:/bin"
assert subprocess.run(["sh", "-c", "exit 3"]).returncode == 3

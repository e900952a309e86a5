"""A library that is loaded into every later program, by the environment: it can change what is in this sandbox only, and not the agent."""
# alone: true

import os

for name, value in (("LD_PRELOAD", "/workspace/evil.so"), ("LD_LIBRARY_PATH", "/workspace"), ("PYTHONSTARTUP", "/workspace/evil.py"), ("BASH_ENV", "/workspace/evil.sh"), ("PYTHONHOME", "/workspace"), ("GCONV_PATH", "/workspace"), ("PATH", "/workspace")):
    os.environ[name] = value
for name in ("evil.py", "evil.sh", "sh", "bash", "python", "python3", "uv", "pip"):
    with open(f"/workspace/{name}", "w") as f:
        f.write("#!/bin/sh\nexit 99\n")
    os.chmod(f"/workspace/{name}", 0o755)

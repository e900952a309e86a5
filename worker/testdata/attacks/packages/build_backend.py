"""A package that runs code while it is built. It runs in this sandbox and finds what any code finds here: no host, no network, no agent."""
# timeout: 120

import os
import subprocess
import sys

os.makedirs("/workspace/evil", exist_ok=True)
with open("/workspace/evil/pyproject.toml", "w") as f:
    f.write('[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n[project]\nname = "evil"\nversion = "1"\n')
with open("/workspace/evil/backend.py", "w") as f:
    f.write("""
import os, socket
done = []
for path in ("/etc/passwd", "/sandfarm/agent", "/opt/python/bin/python", "/proc/sys/kernel/core_pattern", "/proc/1/mem"):
    try:
        os.close(os.open(path, os.O_WRONLY))
        done.append(path)
    except OSError:
        pass
for address in (("169.254.169.254", 80), ("172.17.0.1", 2375), ("127.0.0.1", 6379), ("1.1.1.1", 53)):
    with socket.socket() as s:
        s.settimeout(2)
        if s.connect_ex(address) == 0:
            done.append(address)
if os.getuid() == 0:
    done.append("root")
open("/workspace/evil/done", "w").write(repr(done))
def build_wheel(*_, **__):
    raise SystemExit(3)
""")
subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", "/workspace/evil"], capture_output=True, timeout=100)
if os.path.exists("/workspace/evil/done"):
    assert open("/workspace/evil/done").read() == "[]", open("/workspace/evil/done").read()

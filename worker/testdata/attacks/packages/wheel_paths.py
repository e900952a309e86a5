"""A wheel whose files lie outside the place where it is unpacked: by "..", by absolute names, by links, by its data directories."""
# timeout: 120

import os
import subprocess
import sys
import zipfile

name = "/workspace/slip-1-py3-none-any.whl"
with zipfile.ZipFile(name, "w") as z:
    z.writestr("slip-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: slip\nVersion: 1\n")
    z.writestr("slip-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("../../../../../../../../etc/slipped", "x")
    z.writestr("/etc/slipped2", "x")
    z.writestr("slip-1.data/scripts/../../../../sandfarm/slipped", "x")
    z.writestr("slip-1.dist-info/RECORD", "")
before = set(os.listdir("/etc")), set(os.listdir("/"))
subprocess.run([sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--target", "/tmp/target", name], capture_output=True, timeout=100)
assert before == (set(os.listdir("/etc")), set(os.listdir("/")))
assert not os.path.exists("/sandfarm/slipped")  # it cannot be listed
os.unlink(name)

import os

for folder in ("/workspace", os.path.expanduser("~/.packages")):
    for name in ("sandfarm_output", "sandfarm_shell", "sandfarm_probe", "sandfarm_jupyter"):
        if os.path.exists(f"{folder}/{name}.py"):
            os.unlink(f"{folder}/{name}.py")
with open("/workspace/mine.py", "w") as f:
    f.write("value = 3\n")
import importlib

importlib.invalidate_caches()
import mine

assert mine.value == 3

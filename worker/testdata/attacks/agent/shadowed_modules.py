"""Modules of one's own under the names of those that the kernel loads at its start."""
# error: KernelDied
# alone: true

import os

for folder in ("/workspace", os.path.expanduser("~/.packages")):
    os.makedirs(folder, exist_ok=True)
    for name in ("sandfarm_output", "sandfarm_shell", "sandfarm_probe", "sandfarm_jupyter"):
        with open(f"{folder}/{name}.py", "w") as f:
            f.write("import os\nos._exit(5)\n")
os._exit(0)

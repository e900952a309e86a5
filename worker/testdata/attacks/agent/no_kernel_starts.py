"""A sitecustomize that ends each kernel at its start. The sandbox has ruined itself: each run says that the kernel died, and nothing waits."""
# error: KernelDied
# ruins: true

import os

packages = os.path.expanduser("~/.packages")
os.makedirs(packages, exist_ok=True)
with open(f"{packages}/sitecustomize.py", "w") as f:
    f.write("import os\nos._exit(7)\n")
os._exit(1)

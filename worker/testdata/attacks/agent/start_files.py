"""Files that the next kernel runs when it starts: sitecustomize, usercustomize, .pth, and IPython's profile. Each says so and goes on; the next
kernel starts all the same."""
# error: KernelDied
# alone: true

import os
import sys

packages = os.path.expanduser("~/.packages")
os.makedirs(packages, exist_ok=True)
for name in ("sitecustomize.py", "usercustomize.py"):
    with open(f"{packages}/{name}", "w") as f:
        f.write("import os\nopen('/tmp/started', 'a').write('x')\nraise RuntimeError('from the start')\n")
with open(f"{packages}/evil.pth", "w") as f:
    f.write("import os; open('/tmp/started', 'a').write('y')\n")
start = os.path.expanduser("~/.ipython/profile_default/startup")
os.makedirs(start, exist_ok=True)
with open(f"{start}/00-evil.py", "w") as f:
    f.write("while True: pass\n")
os._exit(1)

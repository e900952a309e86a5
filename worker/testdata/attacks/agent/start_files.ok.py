import os
import shutil

packages = os.path.expanduser("~/.packages")
for name in ("sitecustomize.py", "usercustomize.py", "evil.pth"):
    if os.path.exists(f"{packages}/{name}"):
        os.unlink(f"{packages}/{name}")
shutil.rmtree(os.path.expanduser("~/.ipython"), ignore_errors=True)

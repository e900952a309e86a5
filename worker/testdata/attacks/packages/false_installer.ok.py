import os
import shutil

shutil.rmtree(os.path.expanduser("~/.packages"), ignore_errors=True)
for name in ("uv", "pip", "git"):
    if os.path.exists(f"/workspace/{name}"):
        os.unlink(f"/workspace/{name}")

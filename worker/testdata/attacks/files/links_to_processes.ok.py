import os

for name in ("agent_root", "environ", "self_root", "descriptor", "cwd", "device"):
    if os.path.lexists(name):
        os.unlink(name)

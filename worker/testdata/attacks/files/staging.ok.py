import os

for name in os.listdir("."):
    if os.path.islink(name) and os.readlink(name) == "/etc":
        os.unlink(name)

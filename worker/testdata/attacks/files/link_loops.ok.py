import os

for name in ("self", "first", "second", "loop"):
    if os.path.lexists(name):
        os.unlink(name)

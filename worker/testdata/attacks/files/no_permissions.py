"""Files and directories without any permission, also the workspace itself: listing says so, and the sandbox can still be cleaned and closed."""
# reads: locked/inside sealed

import os

os.makedirs("locked", exist_ok=True)
if os.access("locked", os.X_OK):
    with open("locked/inside", "w") as f:
        f.write("x")
    with open("sealed", "w") as f:
        f.write("x")
os.chmod("locked", 0)
os.chmod("sealed", 0)
os.chmod("/workspace", 0o555)

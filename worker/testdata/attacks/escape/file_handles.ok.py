import os

with open("kept", "w") as f:
    f.write("x")
inode = os.stat("kept").st_ino
assert inode in [entry.inode() for entry in os.scandir(".")]
os.unlink("kept")

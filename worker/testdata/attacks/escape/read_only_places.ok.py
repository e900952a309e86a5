import os

for place in ("/workspace", "/tmp", "/home/sandbox", "/dev/shm"):
    with open(f"{place}/mine", "w") as f:
        f.write("x")
    os.unlink(f"{place}/mine")

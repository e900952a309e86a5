import os

for place in ("/workspace", "/tmp", "/dev/shm", "/run/sandfarm", "/home/sandbox"):
    if os.path.exists(f"{place}/fill"):
        os.unlink(f"{place}/fill")
with open("/workspace/some", "wb") as f:
    f.write(bytes(10 << 20))
os.unlink("/workspace/some")

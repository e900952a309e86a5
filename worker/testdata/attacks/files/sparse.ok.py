import os

if os.path.exists("sparse34"):
    os.unlink("sparse34")
with open("holes", "wb") as f:
    f.seek(1 << 20)
    f.write(b"x")
assert os.path.getsize("holes") == (1 << 20) + 1
os.unlink("holes")

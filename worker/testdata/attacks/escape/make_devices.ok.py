import os

os.mkfifo("/tmp/pipe")
os.unlink("/tmp/pipe")
with open("/dev/null", "wb") as nothing:
    nothing.write(b"x")
assert len(open("/dev/urandom", "rb").read(16)) == 16

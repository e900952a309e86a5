import os

master, slave = os.openpty()
os.write(master, b"x\n")
assert os.read(slave, 2) == b"x\n"
os.close(master)
os.close(slave)

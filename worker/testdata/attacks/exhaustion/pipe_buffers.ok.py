import os

read, write = os.pipe()
os.write(write, bytes(60000))
assert len(os.read(read, 60000)) == 60000
os.close(read)
os.close(write)

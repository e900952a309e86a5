import os

fd = os.memfd_create("some", os.MFD_ALLOW_SEALING)
os.write(fd, b"x" * 1000)
assert os.fstat(fd).st_size == 1000
os.close(fd)

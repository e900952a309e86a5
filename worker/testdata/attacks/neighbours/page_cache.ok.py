import os

with open("big", "wb") as f:
    os.posix_fallocate(f.fileno(), 0, 1 << 20)
with open("big", "rb") as f:
    for advice in (os.POSIX_FADV_SEQUENTIAL, os.POSIX_FADV_WILLNEED, os.POSIX_FADV_DONTNEED, os.POSIX_FADV_NORMAL):
        os.posix_fadvise(f.fileno(), 0, 0, advice)
    assert len(f.read()) == 1 << 20
os.remove("big")

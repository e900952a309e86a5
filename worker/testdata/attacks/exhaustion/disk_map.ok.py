import errno
import fcntl
import os
import shutil

FICLONE = 0x40049409
with open("a.txt", "w+") as a, open("b.txt", "w+") as b:
    a.write("here")
    a.flush()
    try:
        fcntl.ioctl(b.fileno(), FICLONE, a.fileno())
    except OSError as e:  # as files without it answer, which copies expect
        assert e.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL), e
shutil.copy("a.txt", "b.txt")
assert open("b.txt").read() == "here"
assert os.system("cp --reflink=auto a.txt c.txt && cmp a.txt c.txt") == 0
for name in ("a.txt", "b.txt", "c.txt"):
    os.remove(name)

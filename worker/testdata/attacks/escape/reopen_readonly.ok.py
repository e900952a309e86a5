import os

with open("/tmp/copy", "wb") as target:
    fd = os.open("/etc/passwd", os.O_RDONLY)
    assert os.sendfile(target.fileno(), fd, 0, 1 << 16) > 0
    os.close(fd)
os.unlink("/tmp/copy")

import os
import shutil

shutil.copyfile("/etc/passwd", "/tmp/copy")
with open("/etc/passwd", "rb") as one, open("/tmp/copy", "rb") as other:
    assert one.read() == other.read()
os.unlink("/tmp/copy")

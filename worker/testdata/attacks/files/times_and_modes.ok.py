import glob
import os

os.chmod(".", 0o755)
for path in glob.glob("time*"):
    os.unlink(path)
with open("now", "w") as f:
    f.write("x")
assert os.path.getmtime("now") > 1.6e9

import os

with open("target", "w") as f:
    f.write("inside")
if not os.path.lexists("good"):
    os.symlink("target", "good")
assert open("good").read() == "inside"

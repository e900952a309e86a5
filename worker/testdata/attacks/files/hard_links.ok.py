import os

with open("one", "w") as f:
    f.write("x")
os.link("one", "other")
assert os.stat("one").st_nlink == 2
os.unlink("other")

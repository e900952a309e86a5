import os

os.makedirs(os.path.expanduser("~/.config/mine"), exist_ok=True)
with open(os.path.expanduser("~/.config/mine/settings"), "w") as f:
    f.write("x")

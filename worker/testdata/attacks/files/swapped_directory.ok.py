import os

os.makedirs("plain", exist_ok=True)
with open("plain/file", "w") as f:
    f.write("mine")
os.rename("plain", "renamed")
assert open("renamed/file").read() == "mine"
os.rename("renamed", "plain")

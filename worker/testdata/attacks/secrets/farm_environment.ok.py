import os

os.environ["MINE"] = "1"
assert os.environ["MINE"] == "1"
del os.environ["MINE"]

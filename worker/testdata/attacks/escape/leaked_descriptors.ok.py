import os

os.chdir("/tmp")
assert os.getcwd() == "/tmp"
os.chdir("/workspace")

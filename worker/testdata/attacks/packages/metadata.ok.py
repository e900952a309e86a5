import os
import shutil

shutil.rmtree(os.path.expanduser("~/.packages"), ignore_errors=True)
os.makedirs(os.path.expanduser("~/.packages"))

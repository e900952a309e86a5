import os
import subprocess

child = subprocess.Popen(["sleep", "30"])
child.terminate()
assert child.wait() == -15

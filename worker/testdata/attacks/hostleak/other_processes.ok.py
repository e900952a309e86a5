import os
import subprocess

child = subprocess.Popen(["sleep", "30"])
assert os.path.exists(f"/proc/{child.pid}/status")
child.kill()
child.wait()

import os
import signal
import subprocess

child = subprocess.Popen(["sleep", "30"])
os.kill(child.pid, signal.SIGSTOP)
os.kill(child.pid, signal.SIGKILL)
child.wait()

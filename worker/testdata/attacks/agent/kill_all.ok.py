import os
import signal

child = os.fork()
if child == 0:
    signal.pause()
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)

"""A process that outlives its execution and keeps the pipe of its output open: the execution ends nevertheless."""
# alone: true

import os

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "30"])
    os._exit(0)
os.wait()

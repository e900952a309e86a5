import os
import pty

pid, fd = pty.fork()
if pid == 0:
    os.execvp("true", ["true"])
assert os.waitpid(pid, 0)[1] == 0
os.close(fd)

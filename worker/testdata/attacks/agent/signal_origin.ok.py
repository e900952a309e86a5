import fcntl
import os
import signal
import subprocess

seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
os.kill(os.getpid(), signal.SIGUSR1)
child = subprocess.Popen(["sleep", "60"])
signal.pidfd_send_signal(os.pidfd_open(child.pid), signal.SIGTERM)
assert child.wait() == -signal.SIGTERM
read, _ = os.pipe()
fcntl.fcntl(read, fcntl.F_SETFL, fcntl.fcntl(read, fcntl.F_GETFL) | os.O_NONBLOCK)
assert seen

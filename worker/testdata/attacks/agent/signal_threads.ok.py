import os
import signal
import subprocess
import threading

seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
signal.raise_signal(signal.SIGUSR1)
child = subprocess.Popen(["sleep", "60"])
child.kill()
assert child.wait() == -signal.SIGKILL
os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0))
assert len(seen) >= 1

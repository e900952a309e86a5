import signal
import time

seen = []
old = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.05)
time.sleep(0.3)
signal.signal(signal.SIGALRM, old)
assert seen

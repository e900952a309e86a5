import os
import time

held = [os.openpty() for _ in range(100)]
time.sleep(3)  # the agent counts them each second
for one, other in held:
    os.close(one)
    os.close(other)
assert get_ipython().getoutput("tty; echo 42")[-1] == "42"

import os
import time

assert time.clock_gettime(time.CLOCK_REALTIME) > 1.6e9
assert os.uname().sysname == "Linux"

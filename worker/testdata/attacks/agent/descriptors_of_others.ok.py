import os

assert os.listdir("/proc/self/fd")

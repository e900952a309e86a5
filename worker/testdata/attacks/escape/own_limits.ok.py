import os

assert os.cpu_count() >= 1
assert len(os.sched_getaffinity(0)) >= 1

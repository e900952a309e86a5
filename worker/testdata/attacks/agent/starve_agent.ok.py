import os
import resource
import subprocess

assert resource.prlimit(1, resource.RLIMIT_NOFILE)[0] > 0
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
assert subprocess.run(["bash", "-c", "ulimit -n 64 && nice -n 5 true"]).returncode == 0
os.sched_setaffinity(0, os.sched_getaffinity(0))
os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

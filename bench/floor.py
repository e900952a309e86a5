"""The floor: a Jupyter kernel of the sandbox's own Python, called directly by Jupyter's own client.

floor.py boot           prints the seconds from start to the answer of print(1)
floor.py print N        prints the milliseconds of N print(1), one a line
floor.py cpu N          prints the CPU seconds of client and kernel for N print(1)
floor.py rate N         prints start and end (unix seconds) of N print(1) in a row
floor.py code CODE      prints the seconds that CODE takes, and the bytes of its output that arrived
"""

import os
import sys
import time

began = time.time()
from jupyter_client.manager import start_new_kernel  # noqa: E402

manager, kernel = start_new_kernel(kernel_name="python3")


def used() -> float:
    total = 0
    for pid in "self", manager.provisioner.pid:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def call() -> float:
    start = time.perf_counter()
    kernel.execute_interactive("print(1)", output_hook=lambda message: None, store_history=True)
    return (time.perf_counter() - start) * 1000


call()
if sys.argv[1] == "boot":
    print(time.time() - began)
elif sys.argv[1] == "code":
    arrived = 0

    def count(message):
        global arrived
        if message["msg_type"] == "stream":
            arrived += len(message["content"]["text"])

    start = time.time()
    kernel.execute_interactive(sys.argv[2].encode().decode("unicode_escape"), output_hook=count)
    print(time.time() - start, arrived)
else:
    for _ in range(20):
        call()
    count = int(sys.argv[2])
    if sys.argv[1] == "cpu":
        start = used()
        for _ in range(count):
            call()
        print(used() - start)
    elif sys.argv[1] == "print":
        print(*(call() for _ in range(count)), sep="\n")
    else:
        start = time.time()
        for _ in range(count):
            call()
        print(start, time.time())
kernel.stop_channels()
manager.shutdown_kernel(now=True)

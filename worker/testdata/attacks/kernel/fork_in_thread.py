"""Forks in threads, whose children hold locks that nobody releases."""
# timeout: 20

import os
import threading
import time


def fork():
    child = os.fork()
    if child == 0:
        print("from the child of a thread")
        os._exit(0)
    os.waitpid(child, 0)


threads = [threading.Thread(target=fork) for _ in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join(10)
assert not any(thread.is_alive() for thread in threads)

import os
import threading

child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
thread = threading.Thread(target=lambda: None)
thread.start()
thread.join()

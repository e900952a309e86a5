"""Functions that the interpreter calls at each line and each call, in every thread: they raise, or never return."""
# timeout: 4
# state: timed_out
# error: KernelDied KeyboardInterrupt
# next: KernelDied RuntimeError
# alone: true

import sys
import threading


def trace(frame, event, argument):
    while True:
        pass


threading.settrace_all_threads(trace)
threading.setprofile_all_threads(trace)
sys.settrace(trace)
len([])
(lambda: None)()

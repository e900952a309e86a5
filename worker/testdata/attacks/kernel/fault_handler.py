"""Python's own handler of faults, which may end the process or write to any descriptor, set to go off later."""
# error: KernelDied
# alone: true

import faulthandler
import time

faulthandler.dump_traceback_later(0.05, repeat=False, file=open("/dev/null", "w"), exit=True)
time.sleep(10)

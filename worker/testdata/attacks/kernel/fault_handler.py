"""Python's own handler of faults, which may end the process or write to any descriptor, set to go off later."""
# next: KernelDied
# alone: true

import faulthandler

faulthandler.dump_traceback_later(0.05, repeat=False, file=open("/dev/null", "w"), exit=True)

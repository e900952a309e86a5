"""Modules that the kernel uses emptied or exchanged, in sys.modules and in place."""
# next: KernelDied AttributeError TypeError NameError
# error: KernelDied AttributeError TypeError NameError
# alone: true

import sys

for name in ("json", "os", "struct", "socket", "signal", "threading", "asyncio", "IPython", "traceback"):
    sys.modules[name].__dict__.clear()
    sys.modules[name] = None
raise NameError

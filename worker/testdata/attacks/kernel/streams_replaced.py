"""sys.stdout exchanged for an object that fails, or whose write never returns, and sys.displayhook, sys.excepthook with it."""
# error: none OSError
# next: KernelDied
# alone: true

import sys


class Broken:
    def write(self, text):
        raise OSError("broken")

    def flush(self):
        raise OSError("broken")

    def __getattr__(self, name):
        raise RuntimeError(name)


sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = Broken()
sys.displayhook = sys.excepthook = lambda *_: 1 / 0

"""Recursion that the interpreter does not stop: the C stack overflows, and the kernel dies. Only this kernel."""
# error: KernelDied RecursionError MemoryError
# alone: true

import sys

sys.setrecursionlimit(1 << 30)


class Deep:
    def __repr__(self):
        return repr(self) + repr(self)


repr(Deep())
raise RecursionError

"""Functions that the kernel itself uses exchanged for ones that fail: len, open, print, __import__, isinstance."""
# next: KernelDied RuntimeError TypeError
# error: KernelDied RuntimeError TypeError
# alone: true

import builtins


def fail(*_, **__):
    raise RuntimeError("replaced")


for name in ("print", "open", "repr", "sorted", "getattr", "isinstance", "len", "__import__"):
    setattr(builtins, name, fail)
raise RuntimeError

"""Objects that come back when they are deleted, raise in their finalizers, and make more of themselves."""
# timeout: 20

import gc
import weakref

kept = []


class Back:
    count = 0

    def __del__(self):
        Back.count += 1
        if Back.count < 100_000:
            kept.append(self)
            Back()
        raise ValueError("in a finalizer")


import sys

sys.unraisablehook = lambda *_: None
Back()
for _ in range(20):
    kept.clear()
    gc.collect()
gc.set_threshold(700)
sys.unraisablehook = sys.__unraisablehook__

"""Links to themselves and to each other, and a directory that contains a link to itself: a listing must not run in circles."""
# reads: self first loop/loop/loop/loop

import os

for name, target in (("self", "self"), ("first", "second"), ("second", "first"), ("loop", ".")):
    if not os.path.lexists(name):
        os.symlink(target, name)

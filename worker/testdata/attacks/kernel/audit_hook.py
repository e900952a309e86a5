"""An audit hook cannot be removed. This one refuses everything that the kernel does after the cell."""
# next: KernelDied RuntimeError
# timeout: 5
# state: completed timed_out
# error: none KernelDied RuntimeError
# alone: true

import sys

armed = False


def hook(event, arguments):
    if armed:
        raise RuntimeError("refused: " + event)


sys.addaudithook(hook)
armed = True

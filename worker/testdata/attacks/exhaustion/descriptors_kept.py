"""The kernel keeps all of its descriptors: the next execution, which needs pipes of its own, says so."""
# ruins: true

import os

kept = []
try:
    while True:
        kept.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass

"""Memory that is not there."""
# error: KernelDied
# alone: true

import ctypes

ctypes.string_at(0)

"""One call into C that takes hours and lets no other thread run, not even the one that would handle an interrupt."""
# timeout: 3
# state: timed_out
# error: KernelDied KeyboardInterrupt
# next: KernelDied
# alone: true

import re

re.match(r"(a+)+$", "a" * 60 + "b")

"""Displayed values as fast as they can be made, each of another name, updated for ever."""
# timeout: 4
# state: timed_out
# error: KeyboardInterrupt KernelDied

from IPython.display import display

number = 0
while True:
    display({"text/plain": "x" * 1000}, raw=True, display_id=str(number))
    number += 1

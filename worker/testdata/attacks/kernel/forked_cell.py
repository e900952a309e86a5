"""A child that runs to the end of the cell as the kernel would: it must not answer for it."""

import os

children = [os.fork() for _ in range(3)]
if all(children):
    for child in children:
        os.waitpid(child, 0)

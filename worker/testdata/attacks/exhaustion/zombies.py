"""Children that end and are not waited for keep their process ids, until there are no more. The agent ends the next ones that it must start
all the same."""
# alone: true

import os

made = 0
try:
    while made < 5000:
        if os.fork() == 0:
            os._exit(0)
        made += 1
except OSError:
    pass
assert made < 5000, made
try:
    while True:
        os.waitpid(-1, 0)
except ChildProcessError:
    pass

"""A process that has left session, parent and environment behind went on after the timeout of what had started it."""
# sample: true
# timeout: 2
# state: timed_out
# error: KeyboardInterrupt

import os

if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve("/bin/sh", ["survivor", "-c", "exec <&- >&- 2>&-; while :; do sleep 0.2; done"], {})
while True:
    pass

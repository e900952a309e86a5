"""Grandchildren whose parents have ended become the agent's children: hundreds of them in a row, which it must wait for."""
# timeout: 60

import os

for _ in range(400):
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(child, 0)

import os

for _ in range(200):
    if os.fork() == 0:
        os._exit(0)
    os.wait()

"""Threads until the kernel refuses one: the sandbox's number of processes and threads is bounded, and the agent still finds room."""
# next: KernelDied OutOfMemory

import threading

stop = threading.Event()
made = []
try:
    while len(made) < 5000:
        thread = threading.Thread(target=stop.wait, daemon=True)
        thread.start()
        made.append(thread)
except (RuntimeError, MemoryError):
    pass
finally:
    stop.set()
for thread in made:
    thread.join()
assert len(made) < 5000, f"{len(made)} threads"

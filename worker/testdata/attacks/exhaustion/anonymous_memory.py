"""Memory until there is none: the kernel is ended, not the agent and nothing outside the sandbox."""
# error: OutOfMemory KernelDied

hoard = []
while True:
    hoard.append(bytearray(b"x" * (8 << 20)))

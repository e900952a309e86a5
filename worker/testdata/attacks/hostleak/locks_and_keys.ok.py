import fcntl

with open("/tmp/lock", "w") as f:
    fcntl.flock(f, fcntl.LOCK_EX)

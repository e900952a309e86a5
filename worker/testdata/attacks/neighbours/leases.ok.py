import fcntl

with open("/workspace/leased", "w") as f:
    pass
with open("/workspace/leased") as f:
    try:
        fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        pass  # tmpfs has none on some kernels

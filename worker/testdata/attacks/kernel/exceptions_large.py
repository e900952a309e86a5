"""An exception with a text of 100 MB, in a group of groups, a hundred levels deep, with surrogates and escapes."""
# error: ExceptionGroup KernelDied OutOfMemory
# timeout: 30

error = ValueError("\x1b[2J\ud800" + "x" * (100 << 20))
for level in range(100):
    error = ExceptionGroup(f"level {level}", [error])
raise error

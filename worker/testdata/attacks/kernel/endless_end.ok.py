import atexit

atexit.register(print, "end")
atexit.unregister(print)

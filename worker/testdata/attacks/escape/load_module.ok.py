import ctypes.util

assert ctypes.CDLL(ctypes.util.find_library("c") or "libc.so.6").getpid() > 0

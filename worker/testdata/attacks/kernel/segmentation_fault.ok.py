import ctypes

assert ctypes.string_at(b"text") == b"text"

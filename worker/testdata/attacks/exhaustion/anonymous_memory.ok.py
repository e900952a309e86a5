hoard = bytearray(100 << 20)
del hoard

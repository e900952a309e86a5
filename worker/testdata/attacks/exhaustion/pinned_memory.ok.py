import mmap

with mmap.mmap(-1, 64 << 20) as region:
    region[0] = 1

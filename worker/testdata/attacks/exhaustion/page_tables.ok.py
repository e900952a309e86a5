import mmap

region = mmap.mmap(-1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE)
region[0] = 1
region[-1] = 1
region.close()

import mmap

regions = [mmap.mmap(-1, 4096) for _ in range(1000)]
for region in regions:
    region.close()

import mmap

# Code that is made at run time is what just-in-time compilers do.
with mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC) as page:
    page.write(b"\xc3")

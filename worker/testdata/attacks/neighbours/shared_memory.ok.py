import multiprocessing.shared_memory
import os

if os.path.exists("/dev/shm/channel"):
    os.unlink("/dev/shm/channel")
block = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
block.buf[0] = 1
block.close()
block.unlink()

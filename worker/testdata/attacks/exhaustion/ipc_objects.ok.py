import multiprocessing

lock = multiprocessing.Lock()
with lock:
    pass

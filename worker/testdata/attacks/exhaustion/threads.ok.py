import concurrent.futures

with concurrent.futures.ThreadPoolExecutor(32) as pool:
    assert sum(pool.map(abs, range(-100, 0))) == 5050

import threading

results = []
threads = [threading.Thread(target=results.append, args=(n,)) for n in range(20)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(results) == list(range(20))

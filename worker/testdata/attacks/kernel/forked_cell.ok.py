import multiprocessing

process = multiprocessing.get_context("fork").Process(target=print, args=("child",))
process.start()
process.join()
assert process.exitcode == 0

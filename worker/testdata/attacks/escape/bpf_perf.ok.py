import time

assert time.perf_counter_ns() > 0 and time.process_time() > 0

import os
import threading

os.mkfifo("/tmp/fifo")
thread = threading.Thread(target=lambda: open("/tmp/fifo", "w").write("x"))
thread.start()
assert open("/tmp/fifo").read() == "x"
thread.join()
os.unlink("/tmp/fifo")

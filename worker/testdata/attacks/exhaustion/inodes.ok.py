import os
import shutil

shutil.rmtree("/dev/shm/many", ignore_errors=True)
os.makedirs("/tmp/some", exist_ok=True)
for number in range(2000):
    open(f"/tmp/some/{number}", "w").close()
shutil.rmtree("/tmp/some")

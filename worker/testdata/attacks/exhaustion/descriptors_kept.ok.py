import os

for fd in globals().get("kept", []):
    os.close(fd)
kept = []
os.close(os.open("/dev/null", os.O_RDONLY))

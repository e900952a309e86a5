files = [open("/dev/null") for _ in range(500)]
for f in files:
    f.close()

"""Arguments and environments of megabytes, in a row of processes that pass them on: they are memory of the kernel while exec runs."""

import os
import subprocess

huge = {f"V{number}": "x" * 120_000 for number in range(20)}
failed = 0
for _ in range(20):
    try:
        subprocess.run(["true", *["y" * 100_000] * 10], env={**os.environ, **huge}, check=False)
    except OSError:
        failed += 1
try:
    subprocess.run(["true", "z" * (1 << 20)])
except OSError:
    failed += 1
assert failed

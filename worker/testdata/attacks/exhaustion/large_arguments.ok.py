import subprocess

assert subprocess.run(["true", "x" * 100_000]).returncode == 0

import os
import subprocess

subprocess.run(["rm", "-rf", "d" * 100], check=True)
os.makedirs("a/b/c/d/e", exist_ok=True)

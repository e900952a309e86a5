"""Three thousand files in one execution: only so many are reported and collected, and the others stay where they are."""
# timeout: 60

import os

os.makedirs("crowd", exist_ok=True)
for number in range(3000):
    with open(f"crowd/{number}", "wb") as f:
        f.write(b"x")

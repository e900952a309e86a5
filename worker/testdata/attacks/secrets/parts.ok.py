import subprocess

for _ in range(5):
    assert subprocess.run(["curl", "-s", "-m", "30", "https://api.good.test/"], capture_output=True).stdout == b"GET api.good.test\n"

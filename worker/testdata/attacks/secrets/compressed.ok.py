import subprocess

assert subprocess.run(["curl", "-s", "--compressed", "-m", "30", "https://api.good.test/"], capture_output=True).stdout == b"GET api.good.test\n"

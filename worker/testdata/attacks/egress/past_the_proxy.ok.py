import subprocess

assert subprocess.run(["curl", "-sm", "30", "http://api.good.test/"], capture_output=True).stdout == b"GET api.good.test\n"

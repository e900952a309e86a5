import subprocess

done = subprocess.run(["curl", "-s", "-m", "30", "-H", "X-Mine: 1", "-u", "me:mine", "https://api.good.test/"], capture_output=True)
assert done.stdout == b"GET api.good.test\n", done

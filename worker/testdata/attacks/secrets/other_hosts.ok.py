import subprocess

got = subprocess.run(["curl", "-sL", "-m", "30", "https://api.good.test/redirect?to=/digest"], capture_output=True).stdout
assert b"Authorization 1 " in got and b"X-Api-Key 1 " in got, got

import subprocess

for method in ("POST", "PUT", "DELETE"):
    got = subprocess.run(["curl", "-s", "-m", "30", "-X", method, "https://api.good.test/"], capture_output=True).stdout
    assert got == f"{method} api.good.test\n".encode(), got

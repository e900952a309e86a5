import subprocess

# A crash is an ordinary end, and reading settings is allowed.
assert subprocess.run(["sh", "-c", "kill -ABRT $$"]).returncode == -6
assert open("/proc/sys/kernel/ostype").read().strip() == "Linux"

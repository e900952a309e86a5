"""Another package index, by every setting an installer knows: the environment, the files of pip and uv, options within requirements. Nothing
outside can be reached, and the agent's installer does not read them."""
# timeout: 60
# auto_install: true
# next: ModuleNotFoundError

import os
import subprocess
import sys

os.makedirs(os.path.expanduser("~/.config/pip"), exist_ok=True)
os.makedirs(os.path.expanduser("~/.config/uv"), exist_ok=True)
with open(os.path.expanduser("~/.config/pip/pip.conf"), "w") as f:
    f.write("[global]\nindex-url = http://169.254.169.254/simple\nextra-index-url = http://172.17.0.1/simple\n")
with open(os.path.expanduser("~/.config/uv/uv.toml"), "w") as f:
    f.write('index-url = "http://169.254.169.254/simple"\n')
with open("/workspace/requirements.txt", "w") as f:
    f.write("--index-url http://169.254.169.254/simple\n--extra-index-url http://172.17.0.1/simple\n-e git+ssh://127.0.0.1/x\nhttp://10.0.0.1/x.whl\n-r /etc/passwd\n../../etc/passwd\n--find-links /\n@evil\n;\n\0\n" + "x" * 100_000 + "\n")
got = subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--index-url", "http://169.254.169.254/simple", "--retries", "0", "--timeout", "3", "-d", "/tmp/got", "six"], capture_output=True, timeout=50)
assert got.returncode != 0, got.stdout

"""Checks the image inside a sandbox: no network, read-only root, any uid. Exits with 0 if all checks pass."""

import json
import os
import pwd
import pathlib
import subprocess
import sys
import time


def run(*argv, **more):
    started = time.perf_counter()
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, **more)
    print(f"{' '.join(argv)[:60]}: {time.perf_counter() - started:.2f} s: {done.stdout.strip()[:200]}")
    assert done.returncode == 0, (argv, done.returncode, done.stdout)
    return done.stdout.strip()


assert os.getuid() != 0, "runs as root"
print("python", sys.version.split()[0], sys.executable)
assert run("node", "--version").startswith("v22.")
assert run("npm", "--version").startswith("11.")
assert run("npx", "--version").startswith("11.")
assert os.readlink("/app") == "/home/sandbox/.app"
assert os.readlink("/home/user") == "/workspace"
if not os.path.exists("/run/sandfarm/accounts"):  # without an agent
    os.mkdir("/run/sandfarm/accounts")
    with open("/run/sandfarm/accounts/passwd", "w") as accounts:
        print(f"user:x:{os.getuid()}:{os.getgid()}::/home/sandbox:/bin/bash", file=accounts)
assert pwd.getpwuid(os.getuid()).pw_name == "user"

os.chdir("/workspace")
with open("probe.js", "w") as probe:
    probe.write("const crypto = require('crypto'); console.log(crypto.createHash('sha256').update('x').digest('hex').length)")
assert run("node", "probe.js") == "64"
assert json.loads(run("node", "-p", "JSON.stringify({icu: '中文'.normalize('NFD').length})")) == {"icu": 2}

# npm installs into the sandbox's package directory, and require and import find the package from the workspace.
source = pathlib.Path("/tmp/hello")
source.mkdir()
(source / "package.json").write_text('{"name": "hello", "version": "1.2.3", "main": "index.js"}')
(source / "index.js").write_text("module.exports = 'hello from a package'")
tarball = run("npm", "pack", "--silent", "--pack-destination", "/tmp", str(source))
run("npm", "install", "--prefix", "/home/sandbox/.node", "--offline", "--no-package-lock", "/tmp/" + tarball.split()[-1])
with open("common.js", "w") as script:
    script.write("console.log(require('hello'))")
with open("module.mjs", "w") as script:
    script.write("import hello from 'hello'; console.log(hello)")
for script in ("common.js", "module.mjs"):
    assert run("node", script) == "hello from a package", script

try:
    open("/opt/node/x", "w")
except OSError:
    pass
else:
    raise AssertionError("the root is writable")

print("smoke: ok")

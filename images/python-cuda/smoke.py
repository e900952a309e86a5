"""Checks the image inside a sandbox: read-only root, any uid; with GPUs, a matrix product on each. Exits with 0 if all checks pass."""

import os
import pwd
import sys
import time

started = time.perf_counter()
import ipykernel
import matplotlib
import numpy as np
import pandas as pd
import torch

print(f"imports: {time.perf_counter() - started:.2f} s")
print("python", sys.version.split()[0], sys.executable)
for module in (ipykernel, matplotlib, np, pd, torch):
    print(module.__name__, module.__version__)

assert sys.version_info[:2] == (3, 13), sys.version
assert os.getuid() != 0, "runs as root"
assert sys.prefix == "/opt/python", sys.prefix
assert os.readlink("/app") == "/home/sandbox/.app"
assert os.readlink("/home/user") == "/workspace"
if not os.path.exists("/run/sandfarm/accounts"):  # without an agent
    os.mkdir("/run/sandfarm/accounts")
    with open("/run/sandfarm/accounts/passwd", "w") as accounts:
        print(f"user:x:{os.getuid()}:{os.getgid()}::/home/sandbox:/bin/bash", file=accounts)
assert pwd.getpwuid(os.getuid()).pw_name == "user"
assert torch.version.cuda and torch.version.cuda.startswith("12."), torch.version.cuda

size = 2048
left, right = (np.random.default_rng(seed).standard_normal((size, size), dtype=np.float32) for seed in (1, 2))
want = left @ right
for index in range(torch.cuda.device_count()):
    device = torch.device("cuda", index)
    started = time.perf_counter()
    got = (torch.from_numpy(left).to(device) @ torch.from_numpy(right).to(device)).cpu().numpy()
    assert np.allclose(got, want, rtol=1e-2, atol=1e-1), f"the product of device {index} is wrong by {np.abs(got - want).max()}"
    print(f"device {index}: {torch.cuda.get_device_name(index)}, {size} x {size} product in {time.perf_counter() - started:.2f} s")
print("devices:", torch.cuda.device_count())
print("smoke: ok")

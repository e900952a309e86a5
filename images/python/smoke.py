"""Checks the image inside a sandbox: no network, read-only root, any uid. Exits with 0 if all checks pass."""

import os
import pwd
import sys
import time
import warnings

warnings.simplefilter("error")  # a missing glyph is a warning

started = time.perf_counter()
import ipykernel
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import openpyxl
import pandas as pd
import PIL.Image
import requests
import scipy
import scipy.stats
import seaborn as sns

print(f"imports: {time.perf_counter() - started:.2f} s")
print("python", sys.version.split()[0], sys.executable)
for module in (ipykernel, matplotlib, np, openpyxl, pd, PIL, requests, scipy, sns):
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

os.chdir("/workspace")
TITLE = "销售额 中文标签 测试，漢字かな한글 −1.5 ±µ"


def plot(name):
    started = time.perf_counter()
    figure, axes = plt.subplots()
    axes.plot([-2, -1, 0, 1], [1, -3, 2, -5], label="图例")
    axes.set_title(TITLE)
    axes.set_xlabel("月份")
    axes.legend()
    figure.savefig(name)
    plt.close(figure)
    assert os.path.getsize(name) > 5000, name
    print(f"{name}: {time.perf_counter() - started:.2f} s")


matplotlib.use("Agg")
plot("plain.png")

# The settings that code for Chinese plots commonly uses, and a theme that sets its own fonts.
with matplotlib.rc_context({"font.family": "sans-serif", "font.sans-serif": ["SimHei", "Microsoft YaHei"]}):
    plot("simhei.png")
sns.set_theme()
plot("seaborn.png")
matplotlib.rcdefaults()

# The warning that this test relies on is raised if the font lacks the glyph.
try:
    with matplotlib.rc_context({"font.family": ["DejaVu Sans Mono"]}):
        plot("boxes.png")
except UserWarning as warning:
    assert "missing from" in str(warning), warning
else:
    raise AssertionError("no warning for missing glyphs: this test would detect nothing")

frame = pd.DataFrame({"名": ["甲", "乙"], "值": [1.5, 2.5]})
frame.to_excel("table.xlsx", index=False)
assert pd.read_excel("table.xlsx").equals(frame)
assert np.isclose(scipy.stats.norm.cdf(0), 0.5)
with PIL.Image.open("plain.png") as picture:
    assert picture.size == (640, 480)

print("smoke: ok")

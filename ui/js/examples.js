// The examples of the playground. Their names are in the dictionaries.
export const examples = [
  {
    name: "plot", language: "python",
    code: `import numpy as np
import matplotlib.pyplot as plt

t = np.linspace(0, 12 * np.pi, 2000)
r = np.exp(np.cos(t)) - 2 * np.cos(4 * t) - np.sin(t / 12) ** 5

fig, ax = plt.subplots(figsize=(5, 5))
ax.plot(r * np.sin(t), r * np.cos(t), color="#a4611a", lw=0.9)
ax.set_aspect("equal")
ax.axis("off")
ax.set_title("butterfly curve")
plt.savefig("butterfly.png", dpi=140)
plt.show()

np.savetxt("points.csv", np.c_[t, r], delimiter=",", header="t,r", comments="", fmt="%.4f")
print(f"drawn with {len(t)} points, saved as butterfly.png and points.csv")
`,
  },
  {
    name: "table", language: "python",
    code: `import numpy as np
import pandas as pd

rng = np.random.default_rng(7)
sales = pd.DataFrame({
    "region": rng.choice(["north", "south", "east", "west"], 500),
    "amount": rng.gamma(3, 40, 500).round(2),
})
summary = sales.groupby("region")["amount"].agg(["count", "sum", "mean", "max"]).round(2)
summary.to_excel("sales.xlsx")

summary
`,
  },
  {
    name: "stream", language: "python",
    code: `import time

for step in range(1, 21):
    bar = "\\033[32m" + "█" * step + "\\033[90m" + "░" * (20 - step) + "\\033[0m"
    print(f"step {step:2}  {bar}", flush=True)
    time.sleep(0.15)

print("\\033[1mdone\\033[0m")
`,
  },
  {
    name: "packages", language: "python", packages: "humanize",
    code: `import humanize

print(humanize.naturalsize(123_456_789, binary=True))
print(humanize.intword(1_234_000_000))
`,
  },
  {
    name: "error", language: "python",
    code: `open("so-far.txt", "w").write("this file is kept\\n")

prices = {"apple": 3}
print("the price of a pear is", prices["pear"])
`,
  },
  {
    name: "shell", language: "bash",
    code: `echo "I am $(id -un) on $(uname -sr), with $(nproc) cores"
df -h . | tail -1
ps aux | head -5
`,
  },
];

"""A plot with Chinese labels and its data. Both files are saved next to this script."""

import csv

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

random = np.random.default_rng(7)
months = np.arange(1, 13)
rain = 60 + 45 * np.sin((months - 4) * np.pi / 6) + random.normal(0, 6, 12)

figure, axes = plt.subplots(figsize=(8, 4.5))
axes.bar(months, rain, color="#4c78a8")
axes.set_title("每月降雨量 · Rain of a year")
axes.set_xlabel("月份 (month)")
axes.set_ylabel("降雨量 (mm)")
axes.set_xticks(months)
figure.tight_layout()
figure.savefig("plot.png", dpi=120)
plt.close(figure)

with open("rain.csv", "w", newline="", encoding="utf-8") as file:
    writer = csv.writer(file)
    writer.writerow(["month", "rain_mm"])
    writer.writerows((int(month), round(float(mm), 1)) for month, mm in zip(months, rain))

wettest = int(months[rain.argmax()])
print(f"mean {rain.mean():.1f} mm, wettest month {wettest} ({rain.max():.1f} mm)")

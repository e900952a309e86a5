"""Reads an input file and shows a table as the last expression.

sandfarm run examples/data.py --file examples/sales.csv
"""

import pandas as pd

sales = pd.read_csv("sales.csv", parse_dates=["day"])
by_region = sales.groupby("region")["amount"].agg(["count", "sum", "mean"]).round(2)
by_region.to_excel("by_region.xlsx")

by_region

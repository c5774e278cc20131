#!/usr/bin/env bash
# A first session with three CSV files as people have them, with texts, dates and gaps: from the files to a report.
#     pip install 'dkl[plots]' && bash first_ten_minutes.sh
set -euo pipefail
began=$SECONDS
step() { echo; echo "== $1 ($((SECONDS - began)) s)"; }

# Orders of a shop, and whether they come late. Yours are in files of your own: leave this step out.
# Three programs wrote them: gaps are empty or NA, texts are quoted or not, and lines end as on Linux or Windows.
python - <<'PYTHON'
import numpy as np
import pandas as pd

draw = np.random.default_rng(0)
n = 1_500
orders = pd.DataFrame(
    {
        "order": [f"A{number:06d}" for number in range(n)],
        "ordered": pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 730 * 24, n), "h"),
        "carrier": draw.choice(["north post", "swift", "by bicycle"], n),
        "town": draw.choice([f"town {number}" for number in range(60)], n),
        "weight": draw.gamma(2.0, 3.0, n).round(2),
        "distance": draw.gamma(3.0, 60.0, n).round(1),
    }
)
risk = 0.02 * orders.distance - 3.0 + 1.5 * (orders.carrier == "swift") * (orders.weight > 8.0)
risk += 1.5 * (orders.ordered.dt.day_of_week >= 5)
orders["late"] = np.where(draw.logistic(size=n) < risk, "late", "in time")
# What real files have: gaps, and several ways to write one.
orders.loc[draw.random(n) < 0.1, "weight"] = np.nan
orders.loc[draw.random(n) < 0.05, "carrier"] = None
orders.iloc[:500].to_csv("orders-1.csv", index=False)
orders.iloc[500:900].to_csv("orders-2.csv", index=False, na_rep="NA")
orders.iloc[900:1_300].to_csv("orders-3.csv", index=False, lineterminator="\r\n", quoting=1)
orders.iloc[1_300:].drop(columns="late").to_csv("new.csv", index=False)
PYTHON

step "Rows once from the files into a store, with a fifth held out; rules for texts, dates and gaps are stored with them"
dkl ingest 'orders-*.csv' orders.zarr --target late --drop order
dkl info orders.zarr

step "A model: everything is chosen from the rows; it ends with scores on the rows held out"
dkl fit orders.zarr late.zarr --effort fast
dkl score late.zarr orders.zarr --scoring roc_auc --scoring log_loss

step "What it goes by"
dkl explain late.zarr orders.zarr --output pictures

step "New orders, each answer beside the number of its order"
dkl predict late.zarr new.csv answers.csv --id order --proba

step "A page to show"
dkl report late.zarr orders.zarr --output report.html

step "done"

"""How often intervals hold new targets: 50 random splits of each set of numbers, beside the share that was asked for.

``python examples/benchmarks/tables/interval_coverage.py --data FOLDER`` reads the folder that `table_sets` describes.
Of each split a quarter of the rows is for testing; of the others a fifth is held out of the fit: its scores set the
width.
Sets whose rows have a time are split by it once and reported, not judged: their newest rows are drawn otherwise.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from table_sets import TableSet, read_sets

import dkl

COVERAGE = 0.9


def covered(rows: tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray], seed: int) -> float:
    """The share of the test rows that are inside of their intervals."""
    X, y, X_test, y_test = rows
    features = dkl.RandomFeatures(n_features=100, scaling="standard", random_state=seed)
    model = dkl.KernelRegressor(features, alpha="auto", solver="newton", conformal_fraction=0.2, random_state=seed)
    with warnings.catch_warnings():
        # a category that only test rows have is none of the model's
        warnings.simplefilter("ignore")
        low, high = model.fit(X, y).predict_interval(X_test, COVERAGE).T
    return float(np.mean((low <= y_test) & (y_test <= high)))


def split_of(table: TableSet, seed: int, most: int) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]:
    """The rows of a split, at most so many; counts are numbers here."""
    rows, rng = table.split(seed), np.random.default_rng(seed)
    train, test = (np.sort(rng.permutation(len(y))[:n]) for y, n in ((rows.y, most), (rows.y_test, most // 3)))
    return rows.X.iloc[train], rows.y[train], rows.X_test.iloc[test], rows.y_test[test]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--sets", help="names, separated by commas")
    parser.add_argument("--splits", type=int, default=50)
    parser.add_argument("--rows", type=int, default=2_000, help="of a training part, at most")
    given = parser.parse_args()
    print("| rows | splits | mean coverage | a standard error | errors away from 0.9 |")
    print("|---|---|---|---|---|")
    sets = read_sets(given.data)
    for table in sets.values() if given.sets is None else [sets[name] for name in given.sets.split(",")]:
        if not table.has_numbers:
            continue
        shares = [covered(split_of(table, seed, given.rows), seed) for seed in table.seeds(given.splits)]
        mean, n = float(np.mean(shares)), len(shares)
        error = float(np.std(shares, ddof=1) / np.sqrt(n)) if n > 1 else np.nan
        away = f"{(mean - COVERAGE) / error:+.2f} | " if n > 1 else "has a time: not judged | "
        print(
            f"| {table.name} | {n} | {mean:.4f} | {'' if n == 1 else f'{error:.4f}'} | {away.strip(' |')} |", flush=True
        )


if __name__ == "__main__":
    main()

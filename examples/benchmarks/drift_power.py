"""The power of `dkl.drift` beside two-sample tests by permutation: hyppo's, and the kernel test written out.

Each case draws pairs of samples of ``--rows`` rows that differ in one way, and counts how often each test says so at
the level 0.05. ``pip install hyppo`` brings hyppo; without it that column stays empty.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from sklearn.metrics.pairwise import euclidean_distances

import dkl

LEVEL, PERMUTATIONS = 0.05, 200
Sampler = Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]


def normal(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    return rng.standard_normal((n, d))


def shifted(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return normal(rng, n, 10), normal(rng, n, 10) + 0.05


def scaled(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return normal(rng, n, 10), 1.06 * normal(rng, n, 10)


def correlated(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Each column is as before; every pair of them has the correlation 0.1."""
    return normal(rng, n, 10), np.sqrt(0.9) * normal(rng, n, 10) + np.sqrt(0.1) * normal(rng, n, 1)


def rotated(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of a square, and of the same square turned by 20 degrees, beside three columns of noise."""
    turn = np.deg2rad(20.0)
    square = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    a, b = rng.uniform(-1.7, 1.7, (2, n, 2))
    return np.hstack([a, normal(rng, n, 3)]), np.hstack([b @ square.T, normal(rng, n, 3)])


def mixed(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Two groups of rows, with the mean and the variance that one has, in the first two of five columns."""
    b = normal(rng, n, 5)
    b[:, :2] = np.sqrt(1.0 - 0.7**2) * b[:, :2] + 0.7 * rng.choice([-1.0, 1.0], (n, 1))
    return normal(rng, n, 5), b


def one_of_many(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """One of thirty columns is shifted by a quarter of its deviation."""
    b = normal(rng, n, 30)
    b[:, 0] += 0.25
    return normal(rng, n, 30), b


def alike(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    return normal(rng, n, 10), normal(rng, n, 10)


CASES: dict[str, Sampler] = {
    "alike, 10 columns": alike,
    "a shift of 0.05 in 10 columns": shifted,
    "a scale of 1.06 in 10 columns": scaled,
    "a correlation of 0.1 between 10 columns": correlated,
    "a square turned by 20 degrees, 5 columns": rotated,
    "a mixture of equal moments, 5 columns": mixed,
    "one of 30 columns shifted by 0.25": one_of_many,
}


def permutation_p_value(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> float:
    """The exact Gaussian kernel with the median distance as bandwidth, and rows dealt anew (Gretton et al. 2012)."""
    rows, n = np.concatenate([a, b]), len(a)
    squares = euclidean_distances(rows, squared=True)
    K = np.exp(-squares / (2.0 * np.median(squares[np.triu_indices(len(rows), 1)])))
    first = np.zeros((len(rows), PERMUTATIONS + 1))
    first[:n, 0] = 1.0
    for k in range(1, PERMUTATIONS + 1):
        first[rng.permutation(len(rows))[:n], k] = 1.0
    # u'Ku with u = 1/n in the first sample and -1/m in the second is |mean phi(a) - mean phi(b)|^2
    u = first / n - (1.0 - first) / len(b)
    found = np.einsum("ik,ik->k", u, K @ u)
    return float(np.mean(found >= found[0]))


def hyppo_p_value(a: np.ndarray, b: np.ndarray) -> float:
    """Its kernel test with its defaults: the median distance, and a chi-squared law in place of permutations."""
    from hyppo.ksample import MMD

    return float(MMD().test(a, b)[1])


def drift_p_values(a: np.ndarray, b: np.ndarray, seed: int) -> tuple[float, float]:
    """Of all columns together, and the least of single columns."""
    found = dkl.drift(a, b, random_state=seed, progress=False)
    return found.p_value, min(column.p_value for column in found.columns)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000, help="of each sample")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--hyppo", type=int, default=50, help="repetitions that hyppo takes part in, the first ones")
    parser.add_argument("--cases", help="beginnings of their names, separated by commas")
    given = parser.parse_args()
    has_hyppo = find_spec("hyppo") is not None
    print("| samples that differ by | dkl.drift | its columns | permutations | hyppo | dkl.drift, the same pairs |")
    print("|---|---|---|---|---|---|")
    seconds = dict.fromkeys(("dkl", "permutations", "hyppo"), 0.0)
    n_of_hyppo = n_of_all = 0
    for name, draw in CASES.items():
        if given.cases and not name.startswith(tuple(given.cases.split(","))):
            continue
        values: dict[str, list[float]] = {kind: [] for kind in ("dkl", "columns", "permutations", "hyppo")}
        for seed in range(given.repetitions):
            rng = np.random.default_rng([seed, 7])
            a, b = draw(rng, given.rows)
            started = time.process_time()
            together, columns = drift_p_values(a, b, seed)
            seconds["dkl"] += time.process_time() - started
            values["dkl"].append(together)
            values["columns"].append(columns)
            started = time.process_time()
            values["permutations"].append(permutation_p_value(a, b, rng))
            seconds["permutations"] += time.process_time() - started
            n_of_all += 1
            if has_hyppo and seed < given.hyppo:
                started = time.process_time()
                values["hyppo"].append(hyppo_p_value(a, b))
                seconds["hyppo"] += time.process_time() - started
                n_of_hyppo += 1
        power = {kind: f"{np.mean(np.array(found) <= LEVEL):.3f}" if found else "" for kind, found in values.items()}
        same = f"{np.mean(np.array(values['dkl'][: len(values['hyppo'])]) <= LEVEL):.2f}" if values["hyppo"] else ""
        print(
            f"| {name} | {power['dkl']} | {power['columns']} | {power['permutations']} | {power['hyppo']} | {same} |",
            flush=True,
        )
    print(
        f"\nprocessor seconds a test: dkl.drift {seconds['dkl'] / n_of_all:.3f}, permutations "
        f"{seconds['permutations'] / n_of_all:.3f}, hyppo {seconds['hyppo'] / max(n_of_hyppo, 1):.3f}"
    )


if __name__ == "__main__":
    main()

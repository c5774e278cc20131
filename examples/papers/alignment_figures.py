"""Figures 1 and 2 of Sinha & Duchi 2016: a kernel learned on a sphere, and columns chosen among k-grams."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from alignment_sets import Setting, measured
from cells import Cells, markdown
from scipy import sparse
from sets import Rows

import dkl
from dkl.plots import ComparisonDisplay

# The tables of a part of the paper, and what draws its pictures afterwards.
Part = tuple[str, list[Callable[[], object]]]
LETTERS, LENGTH, LONGEST = "ACGT", 81, 5
# letters of the two motifs, from this place on
MOTIFS, PLACE = ("GGTTG", "GTTGG"), 59
# columns that the paper's choice keeps
KEPT = 379


@dataclass(frozen=True)
class Scale:
    """How large figures 1 and 2 are."""

    n_rows: int
    n_candidates: int
    columns: tuple[int, ...]
    n_sequences: int
    sizes: tuple[int, ...]


FULL = Scale(10_000, 20_000, tuple(range(2, 16)), 2_900, (10, 30, 100, 379, 1_000, 2_000))
QUICK = Scale(600, 1_000, (2, 5), 400, (30, 379))


def sphere(n_rows: int, n_columns: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal rows, labelled by whether they lie outside the sphere of radius sqrt(d)."""
    X = np.random.default_rng(seed).standard_normal((n_rows, n_columns))
    return X, np.where(np.linalg.norm(X, axis=1) > np.sqrt(n_columns), 1.0, -1.0)


def sphere_rows(scale: Scale, n_columns: int) -> Rows:
    return Rows(*sphere(scale.n_rows, n_columns, 0), *sphere(1_000, n_columns, 1))


def sphere_setting(scale: Scale) -> Setting:
    return Setting("logistic", dkl.Gaussian(1.0, pairing="phase"), 0.01, scale.n_candidates)


def sphere_cell(scale: Scale, n_columns: int) -> dict[str, float]:
    """Errors of as many aligned as plain features."""
    rows, setting = sphere_rows(scale, n_columns), sphere_setting(scale)
    ours = measured(setting.aligned(rows, None, 0), rows)
    plain = measured(setting.plain(rows, int(ours["features"]), 0), rows)
    return {"aligned": ours["test"], "plain": plain["test"], "nnz": ours["features"]}


def figure_1(cells: Cells, output: Path, *, quick: bool = False) -> Part:
    """Error against the number of columns, and the frequencies that are chosen in two."""
    scale = QUICK if quick else FULL
    name = f"sphere, n = {scale.n_rows}, d = {{}}"
    found = list(cells.fill({name.format(d): partial(sphere_cell, scale, d) for d in scale.columns}).values())
    scores = {"|x| > sqrt(d)": {arm: [cell[arm] for cell in found] for arm in ("aligned", "plain")}}
    display = ComparisonDisplay(scale.columns, scores, measure="test error, percent", baseline="plain", along="columns")
    pictures = [
        partial(display.save, output / "figure_1b.png"),
        partial(draw_frequencies, scale, output / "figure_1a.png"),
    ]
    lines = [
        [str(d), f"{cell['aligned']:.1f}", f"{cell['plain']:.1f}", f"{cell['nnz']:.0f}"]
        for d, cell in zip(scale.columns, found, strict=True)
    ]
    heads = ["d", "aligned %", "plain %", "D = nnz"]
    return f"## Figure 1: |x| against sqrt(d), logistic models\n\n{markdown(heads, lines)}\n", pictures


def draw_frequencies(scale: Scale, path: Path) -> Path:
    """Rows in the plane and the frequencies that are chosen, larger where they weigh more."""
    from matplotlib.figure import Figure

    rows, setting = sphere_rows(scale, 2), sphere_setting(scale)
    learner = setting.aligned(rows, None, 0).features.set_params(random_state=0, progress=False).fit(rows.X, rows.y)
    figure = Figure(figsize=(4.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.scatter(*rows.X[:1_000].T, c=rows.y[:1_000], s=4, cmap="bwr", alpha=0.5)
    kept = learner.weights_ > 0.0
    axes.scatter(*learner.candidates_[kept].T, s=3_000.0 * learner.weights_[kept], c="gold", edgecolors="k")
    axes.set(title=f"{kept.sum()} frequencies of {kept.size:,}", aspect="equal")
    figure.savefig(path, dpi=150)
    return path


def sequences(n_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Letters 0 to 3, (n, 81), and signs: four fifths of the positive rows hold a motif in place, no negative one does.

    One sign in twenty is flipped.
    """
    generator = np.random.default_rng(seed)
    letters = generator.integers(0, len(LETTERS), (n_rows, LENGTH))
    signs = np.where(np.arange(n_rows) % 2 == 0, 1.0, -1.0)
    planted = (signs > 0.0) & (generator.random(n_rows) < 0.8)
    codes = np.array([[LETTERS.index(letter) for letter in motif] for motif in MOTIFS])
    letters[planted, PLACE : PLACE + len(codes[0])] = codes[generator.integers(0, len(codes), planted.sum())]
    return letters, np.where(generator.random(n_rows) < 0.05, -signs, signs)


def k_grams(letters: np.ndarray) -> sparse.csr_array:
    """One column for every k-gram at every place, k = 1 to 5: (n, 105,476) for 81 letters."""
    columns, first = [], 0
    for k in range(1, LONGEST + 1):
        places = letters.shape[1] + 1 - k
        codes = sum(letters[:, j : places + j] * 4 ** (k - 1 - j) for j in range(k))
        columns.append(first + np.arange(places) * 4**k + codes)
        first += places * 4**k
    found = np.concatenate(columns, axis=1)
    rows = np.arange(0, found.size + 1, found.shape[1])
    return sparse.csr_array((np.ones(found.size, np.float32), found.ravel(), rows), shape=(len(letters), first))


def prefix_columns() -> list[int]:
    """The columns of the motifs' prefixes in place."""
    found, first = set(), 0
    for k in range(1, LONGEST + 1):
        codes = (sum(LETTERS.index(letter) * 4 ** (k - 1 - j) for j, letter in enumerate(m[:k])) for m in MOTIFS)
        found |= {first + PLACE * 4**k + code for code in codes}
        first += (LENGTH + 1 - k) * 4**k
    return sorted(found)


def kgram_rows(scale: Scale) -> Rows:
    letters, y = sequences(scale.n_sequences)
    X, n_train = k_grams(letters), scale.n_sequences * 3 // 4
    return Rows(X[:n_train], y[:n_train], X[n_train:], y[n_train:])


def keeping(learner: Any, count: int) -> float:
    """The largest rho at which q is left with as many columns at least; the rows are not read again."""
    low, high = 0.0, float(len(learner.weights_))
    for _ in range(60):
        middle = 0.5 * (low + high)
        kept = np.count_nonzero(learner.with_rho(middle).weights_)
        low, high = (middle, high) if kept >= count else (low, middle)
    return low


def columns_learner(n_features: int | None, **options: Any) -> Any:
    return dkl.AlignedFeatures(dkl.Coordinates(), None, n_features, random_state=0, progress=False, **options)


def choice_cell(scale: Scale) -> dict[str, Any]:
    """The seconds of one choice among all columns, the rho that keeps enough of them, and the weights above 0."""
    rows = kgram_rows(scale)
    started = time.process_time()
    learner = columns_learner(None, rho=100.0).fit(rows.X, rows.y)
    seconds = time.process_time() - started
    rho = keeping(learner, KEPT)
    weights = learner.with_rho(rho).weights_
    columns = np.flatnonzero(weights)
    return {"seconds": seconds, "rho": rho, "columns": columns.tolist(), "weights": weights[columns].tolist()}


def columns_cell(scale: Scale, arm: str, size: int, rho: float) -> dict[str, float]:
    """Ridge on columns drawn from q, or all that are kept (estimators 5 and 6); or on columns drawn from all."""
    kept, estimator = min(size, KEPT), "draw" if size < KEPT else "support"
    ours = columns_learner(kept, rho=rho, estimator=estimator)
    features = ours if arm == "aligned" else dkl.RandomFeatures(dkl.Coordinates(), size)
    return measured(Setting("ridge", None, 0.0).machine(features, 0), kgram_rows(scale))


def figure_2(cells: Cells, output: Path, *, quick: bool = False) -> Part:
    """Error against the number of columns, and the weight of each column."""
    scale = QUICK if quick else FULL
    name = f"k-grams, n = {scale.n_sequences}"
    chosen = cells(f"{name}, choice", partial(choice_cell, scale))
    wanted: dict[str, Callable[[], dict[str, float]]] = {
        f"{name}, {arm}, D = {size}": partial(columns_cell, scale, arm, size, chosen["rho"])
        for size in scale.sizes
        for arm in ("aligned", "plain")
    }
    found = {key: cell["test"] for key, cell in cells.fill(wanted).items()}
    errors = {arm: [found[f"{name}, {arm}, D = {size}"] for size in scale.sizes] for arm in ("aligned", "plain")}
    display = ComparisonDisplay(
        scale.sizes, {"planted k-grams": errors}, measure="test error, percent", baseline="plain", along="D"
    )
    pictures = [
        partial(display.save, output / "figure_2a.png"),
        partial(draw_weights, chosen, output / "figure_2b.png"),
    ]
    lines = [[arm, *(f"{value:.1f}" for value in values)] for arm, values in errors.items()]
    among = len(set(prefix_columns()) & set(chosen["columns"]))
    text = (
        f"## Figure 2: ridge on k-grams, test error in percent by columns\n\n"
        f"{markdown(['', *(f'{size:,}' for size in scale.sizes)], lines)}\n\n{KEPT} of 105,476 columns are chosen in "
        f"{chosen['seconds']:.2f} s (the paper: under 0.2 s); {among} of the {len(prefix_columns())} prefixes of the "
        "planted motifs are among them. The Bayes rule's error is 14 %.\n"
    )
    return text, pictures


def draw_weights(chosen: dict[str, Any], path: Path) -> Path:
    """q by column, bars between k-grams of different k, circles around the motifs' prefixes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    columns, weights = np.array(chosen["columns"]) + 1, np.array(chosen["weights"])
    axes.plot(columns, weights, ".", markersize=3)
    planted = np.isin(columns - 1, prefix_columns())
    axes.plot(columns[planted], weights[planted], "o", fillstyle="none", color="C3", label="prefixes of the motifs")
    for edge in np.cumsum([(LENGTH + 1 - k) * 4**k for k in range(1, LONGEST)]):
        axes.axvline(edge, color="0.7", linewidth=0.8)
    axes.set(xlabel="column", ylabel="q", xscale="log")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)
    return path

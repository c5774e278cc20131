"""Greedy kernel learning of Letarte, Morvant & Germain 2019: table 2 and figures 3 and 5, on the paper's splits.

    python examples/papers/posterior.py --quick                              # breast cancer, few settings: seconds
    python examples/papers/posterior.py --data DIR --output FOLDER           # every set, resumable; hours
    python examples/papers/posterior.py --data DIR --sets farm --most 500    # up to 500 frequencies

Of N = 20,000 candidates D are drawn: by the pseudo-posterior (PBRFF, `PosteriorFeatures`), by the best-aligned weights
in a ball (OKRFF, `AlignedFeatures`), or alike (RFF). A linear SVM on their cosines and sines has its C chosen by
validation, and so, for each D, are beta and rho. The paper shows curves and no numbers: the table says by how much the
learned features are ahead of plain ones. Table 2 is the number of rows of each part.

Protocol and deviations: as in `landmarks` (see `splits`). The authors' rho bounds |q - u|^2, which is N times smaller
than the divergence that `AlignedFeatures` takes. They drew 56 sizes from 1 to 5,000, here 12.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cell, Cells, markdown, measured_when, report
from splits import BETAS, SEED, SETS, Split, kernel_search, linear_svm, rbf_svm, split_rows

import dkl
from dkl.plots import ComparisonDisplay

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
RHOS = tuple(10.0 ** np.arange(-4, 1))
QUICK_SIZES, QUICK_BETAS, QUICK_RHOS = (5, 50), (1.0, 10.0), (0.001, 0.1)
PLAIN, POSTERIOR, ALIGNED = "RFF", "PBRFF", "OKRFF"
# of the paper: rows for training, validation and test, and columns
TABLE_2 = {
    "ads": (1967, 492, 820, 1554),
    "adult": (26048, 6513, 16281, 108),
    "breast": (340, 86, 143, 30),
    "farm": (2485, 622, 1036, 54877),
    "mnist17": (9101, 2276, 3793, 784),
    "mnist49": (8268, 2068, 3446, 784),
    "mnist56": (7912, 1979, 3298, 784),
}


class Pools:
    """The candidates of one set with their losses and alignments: one pass each, whatever is drawn of them."""

    def __init__(self, split: Split, gamma: float, n_candidates: int) -> None:
        self.split = split
        self.family = dkl.Gaussian(1.0 / np.sqrt(2.0 * gamma), sampling=split.sampling)
        self.n_candidates = n_candidates

    @cached_property
    def posterior(self) -> dkl.PosteriorFeatures:
        learner = dkl.PosteriorFeatures(self.family, self.n_candidates, random_state=SEED, progress=False)
        return learner.fit(self.split.X[0], self.split.y[0])

    @cached_property
    def aligned(self) -> dkl.AlignedFeatures:
        learner = dkl.AlignedFeatures(
            self.family, self.n_candidates, estimator="draw", random_state=SEED, progress=False
        )
        return learner.fit(self.split.X[0], self.split.y[0])

    def error(self, method: str, value: float, size: int) -> Cell:
        """Of a linear SVM on so many drawn frequencies, two columns each."""
        if method == POSTERIOR:
            features = self.posterior.with_beta(value, n_features=2 * size)
        elif method == ALIGNED:
            features = self.aligned.with_rho(value * self.n_candidates, n_features=2 * size)
        else:
            features = dkl.RandomFeatures(self.family, 2 * size, random_state=SEED, progress=False)
            features.fit(self.split.X[0])
        return linear_svm([features.transform(part) for part in self.split.X], self.split)


def settings(*, quick: bool, most: int) -> list[tuple[str, float, int]]:
    """Method, its beta or rho, and D; the cheapest first."""
    betas, rhos = (QUICK_BETAS, QUICK_RHOS) if quick else (BETAS, RHOS)
    values = [(PLAIN, 0.0), *((POSTERIOR, beta) for beta in betas), *((ALIGNED, rho) for rho in rhos)]
    sizes = QUICK_SIZES if quick else [size for size in SIZES if size <= most]
    return [(method, value, size) for size in sizes for method, value in values]


def measure_set(name: str, options: argparse.Namespace) -> dict[str, dict[int, Cell]]:
    """For each method and D the cell that validates best, and the SVM's; "rows" are those of table 2."""
    cells, start = Cells(options.output / "cells"), f"{name}, {options.scaling}, "
    split = split_rows(name, options.data, options.scaling)
    searched = cells(f"{start}search", lambda: kernel_search(split))
    pools = Pools(split, searched["gamma"], options.n_candidates)
    wanted: dict[str, Callable[[], Mapping[str, Any]]] = {}
    found: dict[str, dict[int, Cell]] = {PLAIN: {}, POSTERIOR: {}, ALIGNED: {}}
    todo = settings(quick=options.quick, most=options.most)
    keys = {one: f"{start}N={pools.n_candidates} {one[0]} {one[1]:g} D={one[2]}" for one in todo}
    for one, key in keys.items():
        wanted[key] = partial(pools.error, *one)
    wanted[f"{start}SVM"] = lambda: rbf_svm(split, **searched)
    measured = cells.fill(wanted)
    for (method, _, size), key in keys.items():
        known = found[method].setdefault(size, measured[key])
        if measured[key]["validation"] < known["validation"]:
            found[method][size] = measured[key]
    found["SVM"] = {0: measured[f"{start}SVM"]}
    found["rows"] = {0: {"shape": [*(part.shape[0] for part in split.X), split.X[0].shape[1]]}}
    return found


def table_2(found: dict[str, dict[str, dict[int, Cell]]]) -> str:
    """Rows of each part and columns, ours and in brackets the paper's."""
    lines = [
        [name, *(f"{ours:,} ({of:,})" for ours, of in zip(of_set["rows"][0]["shape"], TABLE_2[name], strict=True))]
        for name, of_set in found.items()
    ]
    return markdown(["set", "training", "validation", "test", "columns"], lines)


def curve_table(name: str, found: dict[str, dict[int, Cell]]) -> str:
    """Test errors in percent against D, and how many points the posterior is below plain features."""
    methods = (PLAIN, POSTERIOR, ALIGNED)
    lines = []
    for size in found[PLAIN]:
        plain, posterior, aligned = (found[method][size]["test"] for method in methods)
        row = [f"{error:.2f}" for error in (plain, posterior, aligned)]
        lines.append([f"{size:,}", *row, f"{plain - posterior:+.2f}", f"{plain - aligned:+.2f}"])
    heads = ["D", *methods, f"{POSTERIOR} ahead by", f"{ALIGNED} ahead by"]
    return f"### {name} (RBF-SVM {found['SVM'][0]['test']:.2f})\n\n{markdown(heads, lines)}\n"


def draw(found: dict[str, dict[str, dict[int, Cell]]], folder: Path) -> Path:
    """Figures 3 and 5: errors on training and test rows against D, one panel a set."""
    sizes = sorted({size for of_set in found.values() for size in of_set[PLAIN]})
    scores = {
        name: {
            f"{method}, {part}": [of_set[method].get(size, {}).get(part, np.nan) for size in sizes]
            for method in (PLAIN, POSTERIOR, ALIGNED)
            for part in ("train", "test")
        }
        for name, of_set in found.items()
    }
    display = ComparisonDisplay(
        sizes,
        scores,
        measure="error, percent",
        baseline=f"{PLAIN}, test",
        references={name: {"SVM": of_set["SVM"][0]["test"]} for name, of_set in found.items()},
        along="D",
    )
    return display.save(folder / "errors.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz, adult.npz, farm_ads.npz, ads.npz")
    parser.add_argument("--sets", help=f"some of {','.join(SETS)}; all but ads where this is not given")
    parser.add_argument("--scaling", choices=["none", "standard", "unit"], default="none", help="of the rows")
    parser.add_argument("--n-candidates", type=int, default=20_000, help="N")
    parser.add_argument("--most", type=int, default=SIZES[-1], help="frequencies that are drawn at most")
    parser.add_argument("--output", type=Path, default=Path("posterior"), help="folder of cells, tables and picture")
    parser.add_argument("--quick", action="store_true", help="few settings, and breast cancer alone without --sets")
    options = parser.parse_args()
    names = options.sets.split(",") if options.sets else ["breast"] if options.quick else list(SETS[1:])
    found = {name: measure_set(name, options) for name in names}
    measured = [
        cell for of_set in found.values() for method in (PLAIN, POSTERIOR, ALIGNED) for cell in of_set[method].values()
    ]
    curves = (curve_table(name, of_set) for name, of_set in found.items())
    tables = "\n".join([table_2(found), "", *curves, measured_when(measured), ""])
    report(tables, options.output / "tables.md", partial(draw, found, options.output))


if __name__ == "__main__":
    main()

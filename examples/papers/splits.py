"""The protocol of Letarte, Morvant & Germain 2019: their splits, and machines whose settings validation rows choose.

One generator, seeded with 42, draws a quarter of the rows for the test (of sets that have test rows of their own none)
and then a fifth of the others for validation; the authors' code does so, and digits lie in their order. Nothing is
fitted again on both parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sets import rows_of
from sklearn.metrics.pairwise import euclidean_distances, rbf_kernel
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler, normalize
from sklearn.svm import SVC
from squared_hinge import machines

SEED, N_SEARCHED, N_LANDMARKS = 42, 1_500, 1_000
GAMMAS, COSTS, BETAS = (tuple(10.0 ** np.arange(*ends)) for ends in ((-7, 3), (-5, 5), (-3, 4)))
SETS = ("ads", "adult", "breast", "farm", "mnist17", "mnist49", "mnist56")
# wider rows have frequencies that are drawn as products of structured matrices
WIDE = 256

Found = dict[str, float]


@dataclass(frozen=True, eq=False)
class Split:
    """Training, validation and test rows of a set."""

    X: tuple[Any, Any, Any]
    y: tuple[np.ndarray, np.ndarray, np.ndarray]

    @property
    def both(self) -> tuple[Any, np.ndarray]:
        """What there is to learn from: training and validation rows."""
        stack = sparse.vstack if sparse.issparse(self.X[0]) else np.concatenate
        return stack(self.X[:2]), np.concatenate(self.y[:2])

    @property
    def sampling(self) -> str:
        """How frequencies for rows of this width are drawn."""
        return "structured" if self.X[0].shape[1] >= WIDE else "iid"

    def errors(self, model: Any, Z: Sequence[Any] | None = None) -> Found:
        """Percent of the validation and test rows that a model gets wrong; Z are all parts as the model reads them."""
        parts = self.X if Z is None else Z
        return {
            name: _percent_wrong(model, parts[part], self.y[part]) for part, name in ((1, "validation"), (2, "test"))
        }


def _percent_wrong(model: Any, rows: Any, y: np.ndarray) -> float:
    return 100.0 * float(np.mean(model.predict(rows) != y))


def split_rows(name: str, folder: Path | None, scaling: str = "none") -> Split:
    """The paper's parts of a set, as they come or scaled: columns by training rows ("standard"), or rows ("unit")."""
    rows, random = rows_of(name, folder), np.random.RandomState(SEED)
    X, y, X_test, y_test = rows.X, rows.y, rows.X_test, rows.y_test
    if name.startswith("mnist") or not rows.has_test:
        X, y = rows.pooled()
        order = np.argsort(y, kind="stable") if name.startswith("mnist") else np.arange(len(y))
        X, X_test, y, y_test = train_test_split(X[order], y[order], test_size=0.25, random_state=random)
    X, X_valid, y, y_valid = train_test_split(X, y, test_size=0.2, random_state=random)
    parts = (X, X_valid, X_test)
    if scaling == "standard":
        scaler = StandardScaler(with_mean=not sparse.issparse(X)).fit(X)
        parts = tuple(scaler.transform(part) for part in parts)
    elif scaling == "unit":
        parts = tuple(normalize(part) for part in parts)
    return Split(parts, (y, y_valid, y_test))


def linear_svm(Z: Sequence[Any], split: Split) -> Found:
    """The linear SVM on mapped rows that is best on validation rows; of equal ones the strongest penalty."""
    best: Found = {"validation": np.inf}
    worse = 0
    for cost, machine in zip(COSTS, machines(Z[0], split.y[0], COSTS), strict=True):
        found = split.errors(machine, Z)
        better = found["validation"] < best["validation"]
        worse = 0 if better else worse + (cost >= 1.0)
        if better:
            best = {**found, "train": _percent_wrong(machine, Z[0], split.y[0]), "C": cost}
        # weaker penalties take long and do not come back
        if worse == 2:
            break
    return best


def kernel_search(split: Split) -> Found:
    """Gamma and C of the RBF-SVM that is best on validation rows when few rows train it.

    Where these are less than a tenth of all rows, they do not tell for how narrow a kernel all rows would be enough: of
    the gammas within a standard error of the best, the one whose similarities to 1,000 rows validate best is taken.
    """
    tried = sorted(_tried(split))
    wrong, cost, gamma = tried[0]
    if len(split.y[0]) > 10 * N_SEARCHED:
        limit = wrong + np.sqrt(wrong * (1.0 - wrong) / len(split.y[1]))
        of_gamma = {one[2]: one for one in reversed(tried) if one[0] <= limit}
        wrong, cost, gamma = min(of_gamma.values(), key=lambda one: _landmark_error(split, -one[2]))
    return {"validation": 100.0 * float(wrong), "gamma": -gamma, "C": cost}


def _tried(split: Split) -> Iterator[tuple[float, float, float]]:
    """The share of the validation rows that each machine gets wrong, its C and -gamma."""
    near, far = split.X[0][:N_SEARCHED], split.X[1]
    squares = [euclidean_distances(part, near, squared=True).astype(np.float64) for part in (near, far)]
    for gamma in GAMMAS:
        train, validation = (np.exp(-gamma * part) for part in squares)
        for cost in COSTS[4:]:
            machine = SVC(C=cost, kernel="precomputed").fit(train, split.y[0][:N_SEARCHED])
            # of equal ones the strongest penalty and the narrowest kernel: a wide one is a linear machine in disguise
            yield float(np.mean(machine.predict(validation) != split.y[1])), cost, -gamma


def _landmark_error(split: Split, gamma: float) -> float:
    """Validation error of a linear machine on similarities to some rows."""
    similarities = [rbf_kernel(part, split.X[0][:N_LANDMARKS], gamma=gamma) for part in split.X]
    return linear_svm(similarities, split)["validation"]


def rbf_svm(split: Split, *, gamma: float, C: float, **_: float) -> Found:
    """The RBF-SVM of a search, trained by all training rows."""
    machine = SVC(C=C, gamma=gamma, cache_size=500).fit(split.X[0], split.y[0])
    return {**split.errors(machine), "gamma": gamma, "C": C}

"""The machines of figure 4 on one split: what each searches, how ten folds judge it, and its error on the test rows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial, reduce
from typing import Any, Protocol

import numpy as np
from baselines import matern
from few_rows import Found, Hinge, Meta, SquaredErrors, predicted, tuned
from scipy.linalg import lapack
from scipy.spatial.distance import cdist, pdist
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.svm import SVC, SVR

import dkl
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.kernels.maps import map_rows
from dkl.methods.density.penalty import DensityPenalty, meta_spectrum
from dkl.methods.density.squared import solve_squared
from dkl.solvers.squared_sums import SquaredRows, SquaredSums

Values = Mapping[str, Any]
Space = dict[str, Any]

FOLDS = 10
# a support vector machine that has not ended by then is judged as it is
MOST_STEPS = 500_000
# of the objective: what steps on a density may leave to gain where it is judged and not kept; the kinks of the hinge
# make smaller gains slow, and no row of a fold is judged otherwise for them
JUDGED, JUDGED_HINGE = 1e-4, 1e-3
# and where the test rows judge it
KEPT, KEPT_HINGE = 1e-13, 1e-5
# the paper's own machine, and its numbers of frequencies
PRINTED = "TRF"
FREQUENCIES = (50, 100, 200, 400, 800, 1_600)


@dataclass(frozen=True, eq=False)
class Split:
    """Four fifths of the rows to learn from and a fifth to be judged on, scaled by the former alone.

    Columns have mean 0 and deviation 1, the longest row the length 1, targets mean 0 and deviation 1.
    """

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    repeat: int
    is_classes: bool

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, repeat: int) -> Split:
        is_classes = y.dtype.kind not in "fc"
        X, X_test, y, y_test = train_test_split(
            X.astype(np.float64), y, test_size=0.2, random_state=repeat, stratify=y if is_classes else None
        )
        mean, deviation = X.mean(axis=0), X.std(axis=0)
        deviation[deviation == 0.0] = 1.0
        X, X_test = (X - mean) / deviation, (X_test - mean) / deviation
        radius = np.linalg.norm(X, axis=1).max()
        if not is_classes:
            y, y_test = (y - y.mean()) / y.std(), (y_test - y.mean()) / y.std()
        return cls(X / radius, y, X_test / radius, y_test, repeat, is_classes)

    @cached_property
    def folds(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(training places, held-out places) of each fold, the same for all machines."""
        kind = StratifiedKFold if self.is_classes else KFold
        return list(kind(FOLDS, shuffle=True, random_state=self.repeat).split(self.X, self.y))

    @cached_property
    def targets(self) -> np.ndarray:
        """(n, K): numbers, or signs of each class against the rest."""
        if not self.is_classes:
            return self.y[:, None]
        classes = np.unique(self.y)
        signs = np.where(self.y[:, None] == classes, 1.0, -1.0)
        return signs[:, 1:] if len(classes) == 2 else signs

    def decided(self, answers: np.ndarray) -> np.ndarray:
        """(n, K) values of linear models as labels, or as they are."""
        if not self.is_classes:
            return answers[:, 0]
        return np.unique(self.y)[(answers[:, 0] > 0.0).astype(int) if answers.shape[1] == 1 else answers.argmax(axis=1)]

    def score(self, predicted: np.ndarray) -> float:
        """Of held-out predictions of the training rows, the larger the better."""
        error = self.error(predicted, self.y)
        # errors of numbers differ by orders of magnitude, those of labels by percents
        return -error if self.is_classes else -float(np.log(error))

    def error(self, predicted: np.ndarray, y: np.ndarray) -> float:
        """Percent of the labels that are wrong, or the root mean squared error in deviations of the targets."""
        if self.is_classes:
            return 100.0 * float(np.mean(predicted != y))
        return float(np.sqrt(np.mean((predicted - y) ** 2)))


@dataclass(frozen=True)
class Stage:
    """Part of a search: a share of the evaluations in a space that the best values so far may shape.

    Shares of one machine add up to 1, or to more where the paper gives it more.
    """

    share: float
    space: Callable[[Split, Values], Space]


class Machine(Protocol):
    """What a cell of the table needs."""

    def stages(self, split: Split) -> tuple[Stage, ...]:
        """The parts of its search."""
        ...

    def score(self, split: Split, values: Values) -> float:
        """By the folds of the training rows; the larger the better."""
        ...

    def test_error(self, split: Split, values: Values) -> float:
        """Of the machine that learned from all training rows."""
        ...


Kernel = Callable[[Values, np.ndarray, np.ndarray], np.ndarray]
LENGTH = (0.03, 10.0, "log")


def gaussian(values: Values, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    return np.exp(cdist(X, Y, "sqeuclidean") / (-2.0 * values["length"] ** 2))


def three_kernels(values: Values, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """m0 RBF + m1 Matern-3/2 + m2 quadratic: the paper's MKL."""
    mixed = values["m0"] * gaussian(values, X, Y) + values["m1"] * matern(X, Y, length=values["matern_length"])
    return mixed + values["m2"] * (1.0 + X @ Y.T) ** 2


class SupportVectors:
    """libsvm's machine on a kernel: C, epsilon for numbers, and what the kernel has are searched."""

    def __init__(self, kernel: Kernel, searched: Space) -> None:
        self.kernel = kernel
        self.searched = searched

    def stages(self, split: Split) -> tuple[Stage, ...]:
        return (Stage(1.0, self._space),)

    def score(self, split: Split, values: Values) -> float:
        kernel = self.kernel(values, split.X, split.X)
        predicted = np.empty_like(split.y)
        for train, test in split.folds:
            machine = self._machine(split, values).fit(kernel[np.ix_(train, train)], split.y[train])
            predicted[test] = machine.predict(kernel[np.ix_(test, train)])
        return split.score(predicted)

    def test_error(self, split: Split, values: Values) -> float:
        machine = self._machine(split, values).fit(self.kernel(values, split.X, split.X), split.y)
        return split.error(machine.predict(self.kernel(values, split.X_test, split.X)), split.y_test)

    def _space(self, split: Split, best: Values) -> Space:
        epsilon = {} if split.is_classes else {"epsilon": (1e-3, 1.0, "log")}
        return {"C": (1e-2, 1e4, "log"), **epsilon, **self.searched}

    def _machine(self, split: Split, values: Values) -> SVC | SVR:
        common = {"kernel": "precomputed", "C": values["C"], "max_iter": MOST_STEPS}
        return SVC(**common) if split.is_classes else SVR(epsilon=values["epsilon"], **common)


FAMILIES: dict[str, Callable[[float], Any]] = {
    "Gaussian": dkl.Gaussian,
    "Matern": lambda sigma: dkl.Matern(2.5, sigma),
    "Laplacian": dkl.Laplacian,
    "sparse Gaussian": lambda sigma: dkl.SparseFrequencies(dkl.Gaussian(sigma), 0.3),
    "sparse Cauchy": lambda sigma: dkl.SparseFrequencies(dkl.Cauchy(sigma), 0.3),
}


class Tuned:
    """`TunedRegressor` or `TunedClassifier`; with squared errors, sums by fold judge without a fit of the estimator."""

    def __init__(self, numbers: tuple[Stage, ...], labels: tuple[Stage, ...]) -> None:
        self.numbers = numbers
        self.labels = labels

    def stages(self, split: Split) -> tuple[Stage, ...]:
        return self.labels if split.is_classes else self.numbers

    def score(self, split: Split, values: Values) -> float:
        squared = values["loss"] == "squared_error"
        predicted = self._by_sums(split, values) if squared else self._by_fits(split, values)
        return split.score(predicted)

    def test_error(self, split: Split, values: Values) -> float:
        model = self._estimator(split, values).fit(split.X, split.y)
        return split.error(model.predict(split.X_test), split.y_test)

    def _by_sums(self, split: Split, values: Values) -> np.ndarray:
        """Predictions of each fold by the model of the others."""
        phi, penalty = _problem(split, values)
        folds, lam = _folds(split, phi), values["lam"]
        # the problem is convex: the density of all rows is where those of nine tenths are soon found from
        start = solve_squared(reduce(operator.add, folds), penalty, lam, tol=JUDGED).density
        answers = np.empty(split.targets.shape)
        for place, (_, test) in enumerate(split.folds):
            rest = reduce(operator.add, [*folds[:place], *folds[place + 1 :]])
            model = solve_squared(rest, penalty, lam, start, tol=JUDGED)
            answers[test] = phi[test] @ model.coef.T + model.intercept
        return split.decided(answers)

    def _by_fits(self, split: Split, values: Values) -> np.ndarray:
        predicted = np.empty_like(split.y)
        for train, test in split.folds:
            model = self._estimator(split, values).set_params(tol=1e-2, max_passes=30)
            predicted[test] = model.fit(split.X[train], split.y[train]).predict(split.X[test])
        return predicted

    def _estimator(self, split: Split, values: Values) -> Any:
        kind = dkl.TunedClassifier if split.is_classes else dkl.TunedRegressor
        others = {name: value for name, value in values.items() if name not in ("family", "sigma")}
        return kind(family=_family(values), random_state=split.repeat, progress=False, **others)


def _family(values: Values) -> Any:
    return FAMILIES[values["family"]](values["sigma"])


def _problem(split: Split, values: Values) -> tuple[np.ndarray, DensityPenalty]:
    """The mapped training rows, and the penalty of the density of their frequencies."""
    pairs = values["n_features"] // 2
    drawn = _family(values).draw(pairs, split.X.shape[1], split.repeat, np.float64)
    feature_map = FeatureMap("cos-sin", drawn.projection, np.full(pairs, 1.0 / np.sqrt(pairs)))
    phi = map_rows(split.X, feature_map, "float64")
    if np.isinf(values["Lam"]) and len(phi) < 2 * pairs:
        # at u = 1 answers depend on products of rows alone: a rotation leaves as many columns as rows, or one more
        phi, pairs = np.linalg.qr(phi.T, mode="r").T, (len(phi) + 1) // 2
        phi = np.pad(phi, ((0, 0), (0, 2 * pairs - phi.shape[1])))
    W = drawn.projection.dense()[:pairs]
    spectrum = meta_spectrum(W, values["meta_kernel"], length_scale=values["length_scale"])
    return phi, DensityPenalty(spectrum, values["gamma"], values["Lam"], values["density_floor"], values["center"])


def _folds(split: Split, phi: np.ndarray) -> list[SquaredRows] | list[SquaredSums]:
    """The rows of each fold, or their sums where these are fewer numbers."""
    rows = [SquaredRows(phi[test], split.targets[test], np.ones(len(test))) for _, test in split.folds]
    return rows if len(phi) < phi.shape[1] else [_summed(fold) for fold in rows]


def _summed(rows: SquaredRows) -> SquaredSums:
    columns = np.column_stack([rows.phi, np.ones(len(rows.phi))])
    gram, _ = lapack.dtrttp(columns.T @ columns)
    return SquaredSums(gram, rows.targets.T @ columns, np.sum(rows.targets**2, axis=0))


def reference_space(split: Split, best: Values) -> Space:
    """The reference kernel and the ridge, at u = 1: the more frequencies, the closer to the kernel itself."""
    families = ["Gaussian", "Matern", "sparse Gaussian"]
    return {
        "family": families if split.is_classes else ["Gaussian", "Matern", "Laplacian", "sparse Cauchy"],
        "sigma": (0.03, 10.0, "log"),
        "lam": (1e-11, 1e-1, "log"),
        "n_features": [1_000 if split.is_classes else 6_400],
        "loss": ["squared_error"],
        "Lam": [np.inf],
        "gamma": [1.0],
        "meta_kernel": ["delta"],
        "length_scale": [1.0],
        "density_floor": [1.0],
        "center": [1.0],
    }


def density_space(split: Split, best: Values) -> Space:
    """The density beside the ridge, at the reference kernel that was found."""
    kept = {name: [value] for name, value in best.items()}
    spread = float(np.median(pdist(_family(best).draw(200, split.X.shape[1], split.repeat).projection.dense())))
    return kept | {
        "lam": (best["lam"], 100.0 * best["lam"], "log"),
        "n_features": [800],
        "Lam": (1e-6, 1e2, "log"),
        "gamma": (1e-3, 1.0, "log"),
        "meta_kernel": ["rbf"],
        "length_scale": (0.2 * spread, 5.0 * spread, "log"),
    }


def margin_space(split: Split, best: Values) -> Space:
    """A margin instead of squared errors, which suits labels without noise."""
    kept = {name: [value] for name, value in best.items()}
    reference = {"Lam": [np.inf], "meta_kernel": ["delta"], "n_features": [1_000]}
    searched = {"sigma": (0.1, 5.0, "log"), "lam": (1e-7, 1e-2, "log")}
    return kept | reference | searched | {"loss": ["squared_hinge"]}


def printed_space(split: Split, best: Values, n_frequencies: int) -> Space:
    """The paper's own machine: an RBF reference of length 1, an RBF meta-kernel, the hinge for labels."""
    searched = dict.fromkeys(("lam", "Lam", "gamma", "length_scale"), (0.01, 100.0, "log"))
    fixed = {"family": ["Gaussian"], "sigma": [1.0], "n_features": [2 * n_frequencies], "meta_kernel": ["rbf"]}
    loss = ["hinge" if split.is_classes else "squared_error"]
    return fixed | searched | {"loss": loss, "density_floor": [1.0], "center": [1.0]}


def fourier_kernel_learning(split: Split, best: Values) -> Space:
    """G = I, centre 0, u >= 0: the penalty is one of sum |w|^(4/3), whose strength lam alone can set."""
    fixed = {"Lam": [1.0], "gamma": [1.0], "meta_kernel": ["delta"], "density_floor": [0.0], "center": [0.0]}
    searched = {"sigma": (0.03, 10.0, "log"), "lam": (1e-11, 1e1, "log")}
    others = {"family": ["Gaussian"], "n_features": [800], "loss": ["squared_error"], "length_scale": [1.0]}
    return others | searched | fixed


@dataclass(frozen=True)
class Printed:
    """The paper's own machine: the whole budget for each number of frequencies, of which the folds choose one.

    The minimum is that of `dkl.TunedRegressor` and of `dkl.TunedClassifier` with the hinge, found by the kernel matrix
    of the rows (`few_rows`), since a search asks for thousands of them at frequencies that stay.
    """

    frequencies: Sequence[int] = FREQUENCIES

    def stages(self, split: Split) -> tuple[Stage, ...]:
        return tuple(Stage(1.0, partial(printed_space, n_frequencies=D)) for D in self.frequencies)

    def score(self, split: Split, values: Values) -> float:
        meta = _meta(split, values)
        tol = JUDGED_HINGE if split.is_classes else JUDGED
        # the problem is convex: the density of all rows is where those of nine tenths are soon found from
        start = self._found(split, np.arange(len(split.X)), values, meta, tol=tol)
        answers, (_, phi, _) = np.empty(split.targets.shape), _mapped(split, values["n_features"] // 2)
        for train, test in split.folds:
            found = self._found(split, train, values, meta, tol=tol, start=start)
            answers[test] = predicted(found, phi[train], phi[test])
        return split.score(split.decided(answers))

    def test_error(self, split: Split, values: Values) -> float:
        train, tol = np.arange(len(split.X)), KEPT_HINGE if split.is_classes else KEPT
        found = self._found(split, train, values, _meta(split, values), tol=tol)
        _, phi, _ = _mapped(split, values["n_features"] // 2)
        answers = predicted(found, phi[train], phi[len(train) :])
        return split.error(split.decided(answers), split.y_test)

    def _found(
        self, split: Split, train: np.ndarray, values: Values, meta: Meta, *, tol: float, start: Found | None = None
    ) -> Found:
        """The minimum for some of the training rows; a start is one for all of them."""
        (_, phi, plain), pairs = _mapped(split, values["n_features"] // 2), np.ix_(train, train)
        data = (Hinge if split.is_classes else SquaredErrors)(split.targets[train], values["lam"])
        nearby = None if start is None else (start.density, start.kernel[pairs])
        return tuned(phi[train], data, meta, values["lam"], values["Lam"], plain=plain[pairs], start=nearby, tol=tol)


def _meta(split: Split, values: Values) -> Meta:
    return Meta(_mapped(split, values["n_features"] // 2)[0], values["length_scale"], values["gamma"])


@lru_cache(maxsize=1)
def _mapped(split: Split, n_frequencies: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Frequencies of the reference kernel; training rows and below them test rows, mapped; products of the former."""
    W = dkl.Gaussian(1.0).draw(n_frequencies, split.X.shape[1], split.repeat, np.float64).projection.dense()
    feature_map = FeatureMap("cos-sin", DenseProjection(W), np.full(n_frequencies, 1.0 / np.sqrt(n_frequencies)))
    phi = map_rows(np.concatenate([split.X, split.X_test]), feature_map, "float64")
    train = phi[: len(split.X)]
    return W, phi, train @ train.T


FOURIER_KERNEL_LEARNING = (Stage(1.0, fourier_kernel_learning),)
MACHINES: dict[str, Machine] = {
    "RBF-SVM": SupportVectors(gaussian, {"length": LENGTH}),
    "MKL": SupportVectors(
        three_kernels,
        {"length": LENGTH, "matern_length": LENGTH, "m0": (0.0, 1.0), "m1": (0.0, 1.0), "m2": (0.0, 1.0)},
    ),
    "FKL": Tuned(FOURIER_KERNEL_LEARNING, FOURIER_KERNEL_LEARNING),
    PRINTED: Printed(),
    "tuned": Tuned(
        numbers=(Stage(2 / 3, reference_space), Stage(1 / 3, density_space)),
        labels=(Stage(2 / 3, reference_space), Stage(1 / 6, density_space), Stage(1 / 6, margin_space)),
    ),
}

"""Checks a dictionary of rounds: proposals, block sums, plans, exports and model files of fits that choose from it."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from dkl.data.coerce import as_dataset
from dkl.events import Event
from dkl.features.dictionaries import ListedDictionary, Steps
from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.machines.kernel_machines import KernelRegressor
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.rounds.dictionary import Dictionary, SampleSlopes
from dkl.model_io import load_model
from dkl.testing.learners import check_learner
from dkl.testing.require import require, same_bits


def check_dictionary(dictionary: ListedDictionary, *, n_rows: int = 400) -> None:
    """Raise AssertionError if `dictionary` breaks a promise of rounds, or of the models that are fitted with it.

    Sums over a block are compared with sums of mapped rows; passes of a fit with its plan; and the predictions of a
    machine with those of its predictor, its model file, its ONNX graph (if onnx and onnxruntime are installed), and its
    pipeline of scikit-learn objects (unless `to_sklearn` refuses the features with a TypeError).

    Parameters
    ----------
    dictionary : ListedDictionary
        A bandwidth of "median" is replaced by 2.
    n_rows : int
        The number of rows, of four columns, on which it is searched.

    Raises
    ------
    AssertionError
        Naming the promise and what was found instead.

    Examples
    --------
    >>> from dkl.methods.dictionaries.landmarks import Landmarks
    >>> from dkl.testing.dictionaries import check_dictionary
    >>> check_dictionary(Landmarks())
    """
    dictionary.validate()
    near = dictionary.with_bandwidth(2.0) if dictionary.needs_bandwidth else dictionary
    require(not near.needs_bandwidth, "with_bandwidth(sigma) returns a dictionary that needs no bandwidth")
    generator, name = np.random.default_rng(0), type(dictionary).__name__
    X = generator.standard_normal((n_rows, 4))
    y = np.sin(2.0 * X[:, 0]) + np.cos(X[:, 1])
    slopes, weight = (y - y.mean())[:, None], np.ones(n_rows)
    searched: Dictionary = near.searched(None, None)
    points = searched.propose(SampleSlopes(X, slopes, weight), 5, 0)
    require(
        points.ndim == 2 and points.shape[1] == 4,
        f"{name}.propose returns points of as many numbers as rows have columns: (p, 4), not {points.shape}",
    )
    require(0 < len(points) <= 5, f"{name}.propose finds one point at least, and no more than it was asked for")
    again = searched.propose(SampleSlopes(X, slopes, weight), 5, 0)
    require(same_bits(points, again), f"{name}.propose gives the same bits again for the same rows and seed")
    phi = map_rows(X, searched.feature_map(points), "float64")
    require(
        phi.shape[1] == len(points) * searched.columns_a_point,
        f"{name}.feature_map has columns_a_point columns for each point",
    )
    _check_sums(X, np.hstack([slopes, weight[:, None]]), searched.feature_map(points), name)
    unit = searched.unit(X)
    require(np.isfinite(unit) and unit > 0.0, f"{name}.unit is a positive number")
    deviation = unit * float(np.sqrt(phi.var(axis=0).mean()))
    require(0.05 < deviation < 5.0, f"{name}: columns times unit deviate by about a half, and not by {deviation:.2g}")
    shuffled = searched.propose(SampleSlopes(X, generator.permutation(slopes), weight), 5, 0)
    chance = map_rows(X, searched.feature_map(shuffled), "float64")
    require(
        _explained(phi, slopes) > _explained(chance, slopes),
        f"{name}.propose finds points that explain more of the slopes than those found for shuffled ones",
    )
    free = np.array([0.0, 1.0, 1.0, 1.0])
    moved = X + np.outer(generator.standard_normal(n_rows), 1.0 - free)
    # all columns of the full metric have entries, so that a product from the other side uses the first column of X
    for metric in (free, (0.5 * np.eye(4) + generator.uniform(0.1, 0.4, (4, 4))) * free[:, None]):
        searched = near.searched(None, metric)
        points = searched.propose(SampleSlopes(X, slopes, weight), 5, 0)
        before, after = (map_rows(rows, searched.feature_map(points), "float64") for rows in (X, moved))
        require(
            np.allclose(before, after),
            f"{name}: features do not depend on a column of X whose entry or row is 0 in a metric of shape "
            f"{metric.shape}, with which the dictionary sees X {'*' if metric.ndim == 1 else '@'} metric",
        )
    both = [dictionary, Steps(depth=1)]
    check_learner(MarginFeatures(both, n_features=16, scaling="standard"), n_rows=n_rows)
    for family in (both[:1], both):
        _check_machine(family, X, y, name)


def _check_sums(X: np.ndarray, S: np.ndarray, feature_map: FeatureMap, name: str) -> None:
    """Compare the sums of features over a block, and of their squares, with sums of mapped rows."""
    phi = map_rows(X, feature_map, "float64")
    for what, sums, expected in (
        ("features", feature_sums(X, S, feature_map, "float64").reshape(-1, S.shape[1]), phi.T @ S),
        ("squares", feature_squares(X, S[:, -1], feature_map, "float64").reshape(-1), (phi**2).T @ S[:, -1]),
    ):
        gap = float(np.max(np.abs(sums - expected)) / np.max(np.abs(expected)))
        require(gap < 1e-10, f"{name}: block sums of {what} equal sums of mapped rows; they differ by {gap:.1e}")


def _check_machine(family: Sequence[ListedDictionary], X: np.ndarray, y: np.ndarray, name: str) -> None:
    """A fit may start at most as many passes as planned; a saved model has its bits, exports predict as it does."""
    events: list[Event] = []
    features = MarginFeatures(list(family), n_features=16, scaling="standard", dtype="float64", random_state=0)
    machine = KernelRegressor(features, random_state=0, progress=events.append)
    most = sum(calls for _, calls in machine.planned_passes(as_dataset(X, y)))
    machine.fit(X, y)
    n_passes = sum(event.kind == "started" and event.name != "rounds" for event in events)
    require(n_passes <= most, f"{name}: a fit takes at most the {most} passes that are planned, not {n_passes}")
    machine.set_params(progress=False)
    expected = machine.predict(X)
    answers = {"predictor() for few rows": machine.predictor().predict(X[:20])}
    with TemporaryDirectory() as folder:
        store = str(Path(folder, "model.zarr"))
        machine.save(store)
        loaded = load_model(store, classes=[type(dictionary) for dictionary in family])
    require(same_bits(loaded.predict(X), expected), f"{name}: a model file predicts with the bits of the model")
    try:
        answers["to_sklearn()"] = machine.to_sklearn().predict(X)
    except TypeError as refusal:
        require("scikit-learn" in str(refusal), f"{name}: to_sklearn() names what scikit-learn lacks, not {refusal}")
    if find_spec("onnx") is not None and find_spec("onnxruntime") is not None:
        from onnxruntime import InferenceSession

        session = InferenceSession(machine.to_onnx().SerializeToString())
        answers["to_onnx()"] = session.run(None, {session.get_inputs()[0].name: X})[0].reshape(-1)
    for export, answer in answers.items():
        gap = float(np.max(np.abs(answer - expected[: len(answer)])) / np.max(np.abs(expected)))
        require(gap < 1e-8, f"{name}: {export} predicts as the model does; they differ by {gap:.1e}")


def _explained(phi: np.ndarray, slopes: np.ndarray) -> float:
    """The sum of squares of the least-squares prediction of the slopes from the centred columns."""
    centred = phi - phi.mean(axis=0)
    return float(np.sum((centred @ np.linalg.lstsq(centred, slopes, rcond=None)[0]) ** 2))

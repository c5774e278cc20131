"""Checks a dictionary of rounds: its proposals explain more than chance does, and use only the columns they may use."""

from __future__ import annotations

import numpy as np

from dkl.features.dictionaries import ListedDictionary, Steps
from dkl.kernels.maps import map_rows
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.rounds.dictionary import Dictionary, SampleSlopes
from dkl.testing.learners import check_learner
from dkl.testing.require import require, same_bits


def check_dictionary(dictionary: ListedDictionary, *, n_rows: int = 400) -> None:
    """Raise AssertionError if `dictionary` breaks a promise that rounds rely on.

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
    require(points.ndim == 2 and points.shape[1] == 4, f"{name}.propose returns points of shape (p, d)")
    require(0 < len(points) <= 5, f"{name}.propose finds one point at least, and no more than it was asked for")
    again = searched.propose(SampleSlopes(X, slopes, weight), 5, 0)
    require(same_bits(points, again), f"{name}.propose gives the same bits again for the same rows and seed")
    phi = map_rows(X, searched.feature_map(points), "float64")
    require(
        phi.shape[1] == len(points) * searched.columns_a_point,
        f"{name}.feature_map has columns_a_point columns for each point",
    )
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
    searched = near.searched(None, free)
    points = searched.propose(SampleSlopes(X, slopes, weight), 5, 0)
    moved = X + np.outer(generator.standard_normal(n_rows), 1.0 - free)
    before, after = (map_rows(rows, searched.feature_map(points), "float64") for rows in (X, moved))
    require(np.allclose(before, after), f"{name}: columns do not look at a column whose metric is 0")
    check_learner(MarginFeatures([dictionary, Steps(depth=1)], n_features=16, scaling="standard"), n_rows=n_rows)


def _explained(phi: np.ndarray, slopes: np.ndarray) -> float:
    """The sum of squares of the least-squares prediction of the slopes from the centred columns."""
    centred = phi - phi.mean(axis=0)
    return float(np.sum((centred @ np.linalg.lstsq(centred, slopes, rcond=None)[0]) ** 2))

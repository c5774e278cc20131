"""The time of a search for features, for each of its rows, estimated before a fit from a search on a few rows."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import row_mapper
from dkl.methods.frequency_search.frequency_space import FrequencySpace
from dkl.protocols.arrays import Rows


def search_seconds(space: FrequencySpace, few: Rows, n_models: int, count: int) -> float:
    """Processor seconds of a search for each of its rows.

    Parameters
    ----------
    space : FrequencySpace
    few : ndarray or csr_array of shape (r, d), float32
    n_models : int
        The number of weight columns.
    count : int
        Points that the search returns.
    """
    S = np.random.default_rng(0).standard_normal((few.shape[0], n_models))
    S /= np.abs(S).sum()
    return _a_row(lambda: space.search(few, S, count, 0), few)


def forming_seconds(feature_map: FeatureMap, few: Rows) -> float:
    """Processor seconds of the features of one row.

    Parameters
    ----------
    feature_map : FeatureMap
        Without a scaler, or with a fitted one.
    few : ndarray or csr_array of shape (r, d), float32
    """
    mapped = row_mapper(few, feature_map, np.dtype(np.float32))
    return _a_row(lambda: mapped(slice(0, few.shape[0])), few)


def _a_row(call: Callable[[], object], few: Rows) -> float:
    """Processor seconds of a call for each row: the lesser of two calls, after a first one that compiles code."""
    call()
    seconds = []
    for _ in range(2):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return min(seconds) / few.shape[0]

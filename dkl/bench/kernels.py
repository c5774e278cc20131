"""How near block sums are to what bounds them on one thread: the bare product, or the bare cosines, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from dkl.features.families import Gaussian, Sampling
from dkl.features.feature_map import FeatureMap
from dkl.kernels.sincos import cos_sin_rows
from dkl.kernels.sums import feature_sums

# What is promised, by number of columns: the share of the speed of the bare matrix product, whose result of one row a
# candidate is never stored here, so that sums of few columns may be ahead of it; with two columns, where no product is
# made, the share of the speed of bare cosines and sines; and for structured frequencies times the dense kernel.
OF_PRODUCT: Mapping[int, float] = {784: 0.9, 123: 0.85, 32: 1.0}
OF_WAVES: Mapping[int, float] = {2: 0.7}
OF_DENSE: Mapping[int, float] = {784: 4.0, 4096: 12.0}


@dataclass(frozen=True)
class Ratio:
    """One measured ratio of speeds beside the promised one.

    Parameters
    ----------
    name : str
    value, promised : float
    n, d, D : int
        Rows, columns, frequencies.
    seconds, baseline_seconds : float
        CPU time of the one thread, the least of the repetitions, of dkl and of what it is compared with.
    """

    name: str
    value: float
    promised: float
    n: int
    d: int
    D: int
    seconds: float
    baseline_seconds: float

    @property
    def kept(self) -> bool:
        return self.value >= self.promised


def kernel_ratios(
    *, n_rows: int = 16_384, n_frequencies: int = 4_096, n_structured: int = 20_480, repeats: int = 5
) -> Iterator[Ratio]:
    """Measure every promised ratio of the block sums in float32.

    Parameters
    ----------
    n_rows, n_frequencies : int
        The shape of the comparisons with the product and with cosines.
    n_structured : int
        Structured frequencies; these comparisons take an eighth of the rows.
    repeats : int
        Interleaved repetitions; the least time of each side counts.
    """
    # Passes give each block to one thread, so that the speed of one thread is what counts.
    with threadpool_limits(1):
        for d in OF_PRODUCT:
            yield _of_product(n_rows, d, n_frequencies, repeats)
        for d in OF_WAVES:
            yield _of_waves(n_rows, d, n_frequencies, repeats)
        for d in OF_DENSE:
            n = max(64, n_rows // 8)
            yield _structured_ratio(n, d, n_structured, repeats)


def _of_product(n: int, d: int, D: int, repeats: int) -> Ratio:
    """The sums of dense frequencies beside the product that they need, alone."""
    X, y = _rows(n, d)
    feature_map = _map(d, D, "iid")
    W, product = feature_map.projection.dense(), np.empty((n, D), np.float32)
    least = least_seconds(
        {"dkl": lambda: feature_sums(X, y, feature_map), "product": lambda: np.dot(X, W.T, out=product)}, repeats
    )
    return _ratio(f"d = {d}: of the bare product", least["product"], least["dkl"], OF_PRODUCT[d], (n, d, D))


def _of_waves(n: int, d: int, D: int, repeats: int) -> Ratio:
    """The sums of dense frequencies beside as many cosines and sines, of angles that lie in the cache."""
    X, y = _rows(n, d)
    feature_map = _map(d, D, "iid")
    turns = np.random.default_rng(1).random(D, np.float32)
    cosines, sines = np.empty_like(turns), np.empty_like(turns)

    def waves() -> None:
        for _ in range(n):
            cos_sin_rows(turns, cosines, sines)

    least = least_seconds({"dkl": lambda: feature_sums(X, y, feature_map), "waves": waves}, repeats)
    return _ratio(f"d = {d}: of bare cosines and sines", least["waves"], least["dkl"], OF_WAVES[d], (n, d, D))


def _structured_ratio(n: int, d: int, D: int, repeats: int) -> Ratio:
    """The sums of structured frequencies beside those of as many dense ones."""
    X, y = _rows(n, d)
    structured, dense = _map(d, D, "structured"), _map(d, D, "iid")
    least = least_seconds(
        {"dense": lambda: feature_sums(X, y, dense), "structured": lambda: feature_sums(X, y, structured)},
        min(repeats, 3),
    )
    name = f"d = {d}: structured, times the dense kernel"
    return _ratio(name, least["dense"], least["structured"], OF_DENSE[d], (n, d, D))


def least_seconds(functions: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The least CPU time of each function over interleaved repetitions, after one call that compiles and warms up.

    CPU time of the calling thread, so that a busy machine does not count; the work must stay in that thread.
    """
    for function in functions.values():
        function()
    least = dict.fromkeys(functions, np.inf)
    # In turns, so that a slow minute of the machine meets all of them.
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.thread_time()
            function()
            least[name] = min(least[name], time.thread_time() - start)
    return least


def _rows(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal rows and random signs, float32."""
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, d), dtype=np.float32), rng.choice([-1.0, 1.0], n).astype(np.float32)


def _map(d: int, D: int, sampling: Sampling) -> FeatureMap:
    """D frequencies at the bandwidth that normal rows of d columns have."""
    return Gaussian(sigma=float(np.sqrt(d)), sampling=sampling).draw(D, d, seed=0)


def _ratio(name: str, baseline: float, seconds: float, promised: float, shape: tuple[int, int, int]) -> Ratio:
    """The speed relative to the baseline, for (n, d, D)."""
    return Ratio(name, baseline / seconds, promised, *shape, seconds=seconds, baseline_seconds=baseline)

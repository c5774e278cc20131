"""The families, rows and scalers that the tests of block arithmetic run through."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy import sparse
from threadpoolctl import threadpool_limits

from dkl.features.activations import Activation
from dkl.features.families import ArcCosine, Cauchy, Coordinates, Family, Gaussian, Laplacian, Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.landmark_projection import LandmarkProjection, SharedLandmarkProjection
from dkl.features.scaling import Scaler


@dataclass(frozen=True)
class Landmarks:
    """Similarities around random points, each with one frequency or a few of another family."""

    family: Any

    def draw(self, n_frequencies: int, n_columns: int, seed: int, dtype: Any = np.float32) -> FeatureMap:
        rng = np.random.default_rng(seed)
        starts = np.concatenate([[0], np.cumsum(rng.integers(1, 12, n_frequencies))])
        drawn = self.family.draw(int(starts[-1]), n_columns, seed, dtype).projection
        phases = rng.uniform(-9.0, 9.0, starts[-1])
        projection = LandmarkProjection(drawn, phases, rng.dirichlet(np.ones(starts[-1])) * n_frequencies, starts)
        return FeatureMap("landmarks", projection, np.ones(n_frequencies))


@dataclass(frozen=True)
class SharedLandmarks:
    """Similarities that mix the waves of a few frequencies of another family."""

    family: Any

    def draw(self, n_frequencies: int, n_columns: int, seed: int, dtype: Any = np.float32) -> FeatureMap:
        drawn = self.family.draw(37, n_columns, seed, dtype).projection
        mixing = np.random.default_rng(seed).standard_normal((n_frequencies, 74)) / np.sqrt(37)
        return FeatureMap("landmarks", SharedLandmarkProjection(drawn, mixing), np.ones(n_frequencies))


FAMILIES: dict[str, Any] = {
    "gaussian": Gaussian(1.5),
    "orthogonal": Gaussian(1.5, sampling="orthogonal"),
    "structured": Gaussian(1.5, sampling="structured"),
    "phase": Gaussian(1.5, pairing="phase"),
    "structured phase": Gaussian(1.5, sampling="structured", pairing="phase"),
    "laplacian": Laplacian(4.0),
    "cauchy": Cauchy(2.0),
    "matern": Matern(1.5, 2.0),
    "step": ArcCosine(0),
    "ramp": ArcCosine(1),
    "structured ramp": ArcCosine(1, sampling="structured"),
    "squared ramp": ArcCosine(2),
    "coordinates": Coordinates(),
}
FOURIER = {name: family for name, family in FAMILIES.items() if not isinstance(family, ArcCosine | Coordinates)}
FAMILIES |= {f"landmarks, {name}": Landmarks(FOURIER[name]) for name in ("gaussian", "structured")}
FAMILIES |= {f"shared landmarks, {name}": SharedLandmarks(FOURIER[name]) for name in ("gaussian", "structured")}
STORAGES = ("dense", "sparse")
DTYPES = ("float32", "float64")
SCALINGS = (None, "standard", "minmax", "unit", "quantile", "counts")
# the error of one feature, relative to its size, and of a sum of n of them per sqrt(n)
PRECISION = {"float32": 4e-6, "float64": 1e-13}


def stored(X: np.ndarray, storage: str) -> Any:
    return sparse.csr_array(X) if storage == "sparse" else X


def holey_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random((n, d)) < 0.5, rng.standard_normal((n, d)), 0.0)


def scalable(X: np.ndarray, scaling: str | None) -> np.ndarray:
    """Rows that a scaling takes: without negative numbers, and one row of zeros, for counts."""
    return np.abs(X) * (np.arange(len(X)) != 3)[:, None] if scaling == "counts" else X


def scaler(kind: str | None, d: int) -> Scaler | None:
    if kind is None:
        return None
    rng = np.random.default_rng(5)
    # knots in steps of 1/8, so that some are tied and some rows lie on them
    knots = np.sort(np.round(8 * rng.standard_normal((256, d))) / 8, axis=0)
    return Scaler(
        kind=kind,  # type: ignore[arg-type]
        center=rng.standard_normal(d),
        scale=rng.random(d) + 0.5,
        passthrough=np.arange(d) == 1,
        knots=knots if kind == "quantile" else None,
    )


def weighted_map(family: Family, m: int, d: int, dtype: str, scaling: str | None = None) -> FeatureMap:
    """A drawn map with unequal amplitudes and a scaler."""
    drawn = family.draw(m, d, 7, dtype)
    return replace(drawn, amplitudes=np.linspace(0.5, 1.5, m), scaler=scaler(scaling, d))


@cache
def blas_treats_rows_alike() -> bool:
    """Whether a row of a float32 product has the same bits wherever it stands: not in OpenBLAS on AVX2."""
    rng = np.random.default_rng(0)
    W, row = (rng.normal(size=shape).astype(np.float32) for shape in ((32, 100), (1, 100)))
    with threadpool_limits(1):
        products = np.dot(np.ascontiguousarray(np.broadcast_to(row, (528, 100))), W.T)
    return bool((products == products[0]).all())


def assert_same_rows(actual: Any, desired: Any, *, atol: float) -> None:
    """To the bit; within `atol`, if there is one, where BLAS rounds a float32 row by its place in the product."""
    if atol == 0.0 or blas_treats_rows_alike():
        np.testing.assert_array_equal(actual, desired)
    else:
        np.testing.assert_allclose(actual, desired, rtol=0, atol=atol)


class Powers(Activation):
    """z and z^2: an activation of an extension with two values a frequency, which are no waves."""

    names = ("power", "square")

    def values(self, xp: Any, z: Any) -> list[Any]:
        return [z, z * z]

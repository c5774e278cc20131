"""The speed of a GPU beside the CPU's, block by block and in a whole fit, and how far their results are apart."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dkl.data.create import create_dataset
from dkl.features.families import Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import SparseProjection
from dkl.kernels.device import Device, on_host, rows_on
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonOptions, TrialSteps, newton_sums
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.linear.array_sgd import ArraySGDClassifier
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.density.sums import squared_block
from dkl.methods.rounds.loop import GramChange, RoundTask, round_sums
from dkl.passes.loop import run_pass
from dkl.passes.reading import LOADER
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum
from dkl.solvers.losses import loss_of

# A computation with its rows, the bytes that come back to the host, and its multiplications and additions a row.
Computation = tuple[Callable[[Rows], np.ndarray], int, float, float]

# A block that takes at most twice the time that its transfer or its products take at the least, passes.
PASSING_SHARE = 0.5


@dataclass(frozen=True)
class DeviceLimits:
    """What a device does at most, as measured here: no computation of a block can be faster.

    Parameters
    ----------
    bytes_a_second : float
        Of rows on their way from the host to the device.
    flops_a_second : float
        Of a product of two float32 matrices.
    """

    bytes_a_second: float
    flops_a_second: float

    def seconds(self, nbytes: float, flops: float) -> float:
        """The least time of a computation that moves so many bytes and multiplies so much, one beside the other."""
        return max(nbytes / self.bytes_a_second, flops / self.flops_a_second)


@dataclass(frozen=True)
class Speed:
    """One computation on both devices.

    Parameters
    ----------
    name : str
    cpu_seconds, gpu_seconds : float
        The least of the repetitions; the CPU with all of its threads.
    difference : float
        The largest difference of the results, relative to the largest number of the CPU's.
    limit_seconds : float or None
        What the GPU would need for the transfers and the products alone; None for a whole fit.
    """

    name: str
    cpu_seconds: float
    gpu_seconds: float
    difference: float
    limit_seconds: float | None = None

    @property
    def ratio(self) -> float:
        """How many times as fast the GPU is."""
        return self.cpu_seconds / self.gpu_seconds

    @property
    def verdict(self) -> str:
        """How near the GPU comes to its limit, and whether that is near enough; empty where there is no limit."""
        if self.limit_seconds is None:
            return ""
        share = self.limit_seconds / self.gpu_seconds
        return f"{share:.2f} of the limit: {'pass' if share >= PASSING_SHARE else 'falls short'}"


def device_speeds(
    *, n_rows: int = 65_536, n_columns: int = 784, n_frequencies: int = 4_096, repeats: int = 3, gpu: Device = "gpu"
) -> Iterator[Speed]:
    """Measure sums, maps, steps and products of columns of one block, a pass over a store, and fits, in float32.

    Parameters
    ----------
    n_rows, n_columns, n_frequencies : int
        Of the block; the fit takes as many rows.
    repeats : int
        Of which the least time counts, after a call that compiles and warms up.
    gpu : {"gpu", "cpu"}
        What is compared with the CPU; "cpu" measures nothing of interest, anywhere.
    """
    generator = np.random.default_rng(0)
    X = generator.standard_normal((n_rows, n_columns), dtype=np.float32)
    # Labels that no linear function of the columns tells, so that steps have something to learn.
    labels = (X[:, :8].prod(axis=1) > 0).astype(np.int64)
    feature_map = Gaussian(sigma=float(np.sqrt(n_columns))).draw(n_frequencies, n_columns, seed=0)
    signs = 2.0 * labels - 1.0

    def steps(rows: Rows) -> np.ndarray:
        model = ArraySGDClassifier(shuffle=False, alpha=1e-4)
        return model.partial_fit(map_rows(rows, feature_map), labels[: len(rows)], classes=np.array([0, 1])).coef_

    # Each computation with its rows, the bytes that come back, and the multiplications and additions of a row.
    product = 2.0 * n_columns * n_frequencies
    computations: dict[str, Computation] = {
        "sums of features": (lambda rows: feature_sums(rows, signs, feature_map), n_rows, 0, product),
        "sums of squared features": (
            lambda rows: feature_squares(rows, np.abs(signs), feature_map),
            *(n_rows, 0, product),
        ),
        "map of 8,192 rows": (
            lambda rows: on_host(map_rows(rows, feature_map)),
            *(8_192, 4.0 * min(n_rows, 8_192) * feature_map.n_features, product),
        ),
        "map and steps of 8,192 rows": (steps, 8_192, 0, product + 4.0 * feature_map.n_features),
        **_column_products(feature_map.take(np.arange(n_frequencies // 2), np.ones(n_frequencies // 2)), labels),
        **_few_entries(n_columns, n_frequencies),
    }
    limits = device_limits(gpu, size=n_frequencies)
    for name, (compute, used, returned, flops) in computations.items():
        some = X[:used]
        limit = limits.seconds(some.nbytes + returned, flops * len(some))
        # Moving the rows to the device is part of the time, as it is in a pass.
        yield _speed(name, partial(_computed_on, compute, some), gpu, repeats, limit)
    yield _pass_speed(X, feature_map, gpu, repeats, limits)
    for solver in ("sgd", "newton"):
        machine = _machine(solver, n_frequencies)

        def fitted(device: Device, machine: KernelClassifier = machine) -> np.ndarray:
            return machine.set_params(device=device).fit(X, labels).decision_function(X[:1_000])

        yield _speed(f"fit of aligned features, solver={solver!r}", fitted, gpu, 1)


def _column_products(feature_map: FeatureMap, labels: np.ndarray) -> dict[str, Computation]:
    """What is made of products of columns over 8,192 rows: of a Newton step, a tuned one and a corrective round."""
    m, signs = feature_map.n_features, 2.0 * labels[:8_192, None] - 1.0
    weight, models = np.ones(len(signs)), np.zeros((1, m + 1))
    old, new = np.append(np.arange(m - m // 8), m), np.arange(m - m // 8, m)
    change = GramChange(old, None, ((0, len(old)),))
    sums: dict[str, Any] = {"curvature_unit": 2.0, "has_intercept": True, "has_dual": True, "change": change}
    task = RoundTask(loss_of("squared_hinge"), models[None], new, **sums)
    options = NewtonOptions("squared_hinge", columns=(0, m + 1), exact=False)
    operands = {
        "feature_map": feature_map,
        "targets": _Targets(signs, weight),
        "folds": None,
        "n_folds": 1,
        "columns": (0, m + 1),
        "first": True,
        "dtype": "float32",
    }

    def newton(rows: Rows) -> np.ndarray:
        trial = TrialSteps(models, np.zeros_like(models), np.zeros((1, 1)))
        return newton_sums(rows, signs, weight, feature_map, trial, options)["hessian"]

    def tuned(rows: Rows) -> np.ndarray:
        return squared_block(Block(0, rows, None, None, np.arange(len(weight))), operands)["gram"]

    def corrective(rows: Rows) -> np.ndarray:
        return round_sums(rows, (signs, weight, np.zeros_like(weight)), feature_map, task)["cross"]

    mapping = feature_map.n_frequencies * feature_map.n_columns * 2.0
    return {
        f"Hessian of {m:,} features": (newton, 8_192, 8.0 * m**2, mapping + 2.0 * m**2),
        f"tuned sums of {m:,} features": (tuned, 8_192, 8.0 * m**2, mapping + 2.0 * m**2),
        f"corrective round of {m:,} features": (
            corrective,
            *(8_192, 8.0 * (len(old) ** 2 + m * len(new)), mapping + 2.0 * (len(old) ** 2 + m * len(new))),
        ),
    }


@dataclass(frozen=True, eq=False)
class _Targets:
    """Targets and weights of a block, whatever it is."""

    values: np.ndarray
    weight: np.ndarray

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        return self.values, self.weight


def _few_entries(n_columns: int, n_frequencies: int) -> dict[str, Computation]:
    """Squares of frequencies of three columns each, as a second pass with them has them: they are there already."""
    generator = np.random.default_rng(1)
    supports = np.argsort(generator.random((n_frequencies, n_columns)), axis=1) < 3
    W = generator.standard_normal(supports.shape, dtype=np.float32)
    feature_map = FeatureMap("cos-sin", SparseProjection.from_rows(W, supports), np.ones(n_frequencies))
    flops = 2.0 * n_columns * n_frequencies
    return {
        "sums of frequencies of three columns": (
            lambda rows: feature_squares(rows, np.ones(len(rows)), feature_map),
            *(8_192, 0, flops),
        )
    }


def _pass_speed(X: np.ndarray, feature_map: FeatureMap, gpu: Device, repeats: int, limits: DeviceLimits) -> Speed:
    """A pass over a store; at the limit it takes no longer than reading, moving or multiplying alone does."""
    operands = {"feature_map": feature_map}
    shape = (feature_map.columns_a_frequency, feature_map.n_frequencies)
    record = BlockSum("sums", _sums_of_block, {"sums": Accumulator(shape)}, operands)
    counted = BlockSum("rows", _rows_of_block, {"sums": Accumulator(())}, on_host=True)
    with tempfile.TemporaryDirectory(prefix="dkl-device-") as folder:
        source = create_dataset(f"{folder}/rows.zarr", X, rows_a_block=max(1, len(X) // 32)).source

        def passed(device: Device, record: BlockSum = record) -> np.ndarray:
            # What is read again comes from the store each time.
            LOADER.clear()
            return run_pass(source, (record,), device=device).results[0]["sums"]

        reading = _timed(partial(passed, record=counted), "cpu", repeats)[0]
        flops = 2.0 * feature_map.n_columns * feature_map.n_frequencies * len(X)
        least = max(reading, limits.seconds(X.nbytes, flops))
        return _speed("a pass over a store", passed, gpu, repeats, least)


def _sums_of_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The weighted sums of all features of a block. Operands: "feature_map"."""
    return {"sums": feature_sums(block.X, block.weights, operands["feature_map"])[:, :, 0]}


def _rows_of_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The number of rows, of a block that had to be read for it."""
    return {"sums": np.array(float(block.X.shape[0]))}


def device_limits(device: Device, *, size: int = 4_096, repeats: int = 3) -> DeviceLimits:
    """Measure what a device does at most: the least time of a transfer, and of a product, of matrices of this size."""
    numbers = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    there = rows_on(numbers, device)

    def moved(where: Device) -> np.ndarray:
        # One number back says that all have arrived; on a CPU nothing moves, and a copy stands for it.
        return on_host(rows_on(numbers if where != "cpu" else numbers.copy(), where)[0, :1])

    def multiplied(where: Device) -> np.ndarray:
        return on_host((there @ there)[0, :1])

    seconds = [_timed(compute, device, repeats)[0] for compute in (moved, multiplied)]
    return DeviceLimits(numbers.nbytes / seconds[0], 2.0 * size**3 / seconds[1])


def _computed_on(compute: Callable[[Rows], np.ndarray], X: np.ndarray, device: Device) -> np.ndarray:
    """One computation with the rows on a device."""
    return compute(rows_on(X, device))


def _machine(solver: str, n_frequencies: int) -> KernelClassifier:
    """A machine whose fit has a pass over all candidates and a linear model on an eighth of them."""
    features = AlignedFeatures(n_candidates=n_frequencies, n_features=n_frequencies // 8, random_state=0)
    loss = "hinge" if solver == "sgd" else "squared_hinge"
    return KernelClassifier(features, solver=solver, loss=loss, epochs=2, random_state=0)


def _speed(
    name: str, compute: Callable[[Device], np.ndarray], gpu: Device, repeats: int, limit: float | None = None
) -> Speed:
    """The times of one computation on both devices, and how far its results are apart."""
    cpu_seconds, expected = _timed(compute, "cpu", repeats)
    gpu_seconds, result = _timed(compute, gpu, repeats)
    # Relative to the largest number: entries near 0 are differences of large ones, on both devices.
    difference = np.abs(result - expected).max() / max(np.abs(expected).max(), np.finfo(float).tiny)
    return Speed(name, cpu_seconds, gpu_seconds, float(difference), limit)


def _timed(compute: Callable[[Device], np.ndarray], device: Device, repeats: int) -> tuple[float, np.ndarray]:
    """The least time of the repetitions after a first call, and the result."""
    # The first call compiles kernels and warms up the device, and its result is the one that is compared.
    result, least = np.asarray(compute(device), dtype=np.float64), np.inf
    for _ in range(repeats):
        started = time.perf_counter()
        compute(device)
        least = min(least, time.perf_counter() - started)
    return least, result

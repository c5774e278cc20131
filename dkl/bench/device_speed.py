"""The speed of a GPU beside the CPU's, block by block and in a whole fit, and how far their results are apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from dkl.features.families import Gaussian
from dkl.kernels.device import Device, on_host, rows_on
from dkl.kernels.gradients import gradient_sums
from dkl.kernels.maps import map_rows
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.linear.array_sgd import ArraySGDClassifier
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.protocols.arrays import Rows

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
    """Measure the sums, the map and the steps of one block, and the fit of a kernel machine, in float32.

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
        return model.partial_fit(map_rows(rows[:8_192], feature_map), labels[:8_192], classes=np.array([0, 1])).coef_

    # Each computation with the numbers that it moves over the bus, beside its rows' own, and its multiplications and
    # additions a row.
    product = 2.0 * n_columns * n_frequencies
    computations: dict[str, tuple[Callable[[Rows], np.ndarray], int, int, float]] = {
        "sums of features": (lambda rows: feature_sums(rows, signs, feature_map), n_rows, 0, product),
        "sums of squared features": (
            lambda rows: feature_squares(rows, np.abs(signs), feature_map),
            *(n_rows, 0, product),
        ),
        "sums of gradients, 1,024 rows": (
            lambda rows: gradient_sums(rows[:1_024], signs[:1_024], feature_map),
            *(1_024, 0, 3.0 * product),
        ),
        "map of 8,192 rows": (
            lambda rows: on_host(map_rows(rows[:8_192], feature_map)),
            *(8_192, feature_map.n_features, product),
        ),
        "map and steps of 8,192 rows": (steps, 8_192, 0, product + 4.0 * feature_map.n_features),
    }
    limits = device_limits(gpu, size=n_frequencies)
    for name, (compute, used, returned, flops) in computations.items():
        used = min(used, n_rows)
        limit = limits.seconds(X.nbytes + 4.0 * used * returned, flops * used)
        # Moving the rows to the device is part of the time, as it is in a pass.
        yield _speed(name, partial(_computed_on, compute, X), gpu, repeats, limit)
    for solver in ("sgd", "newton"):
        machine = _machine(solver, n_frequencies)

        def fitted(device: Device, machine: KernelClassifier = machine) -> np.ndarray:
            return machine.set_params(device=device).fit(X, labels).decision_function(X[:1_000])

        yield _speed(f"fit of aligned features, solver={solver!r}", fitted, gpu, 1)


def device_limits(device: Device, *, size: int = 4_096, repeats: int = 3) -> DeviceLimits:
    """Measure what a device does at most: the least time of a transfer, and of a product, of matrices of this size."""
    numbers = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    there = rows_on(numbers, device)

    def moved(where: Device) -> np.ndarray:
        # One number back says that all have arrived; on a CPU nothing moves, and a copy stands for it.
        return on_host(rows_on(numbers.copy(), where)[0, :1])

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

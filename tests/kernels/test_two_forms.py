"""Kernels that NumPy runs for few numbers and compiled code for many: both give the same bits, and each its turn."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from dkl.kernels import gram, landmark_tiles, moments, normal_equations, scale
from dkl.process import TwoForms, compiling_at_once

SEEDS = st.integers(0, 10_000)
# Numbers with a digit are often tied, and some are none at all.
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e300, -1e300])


def numbers(rng: np.random.Generator, shape: tuple[int, ...], special: float = 0.1) -> np.ndarray:
    drawn = np.round(rng.normal(size=shape), 1)
    return np.where(rng.random(shape) < special, rng.choice(SPECIAL, shape), drawn)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, n=st.integers(0, 20), fours=st.integers(1, 3), n_landmarks=st.integers(1, 1_100))
@pytest.mark.parametrize("squared", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_distances_have_the_same_bits_in_both_forms(
    dtype: str, squared: bool, seed: int, n: int, fours: int, n_landmarks: int
) -> None:
    rng = np.random.default_rng(seed)
    X, columns = (rng.normal(size=shape).astype(dtype) for shape in ((n, 4 * fours), (4 * fours, n_landmarks)))
    outs = [np.ones((n, n_landmarks), dtype) for _ in range(2)]
    landmark_tiles._DISTANCES.plain(X, columns, squared, outs[0])
    landmark_tiles._DISTANCES.compiled(X, columns, squared, outs[1])
    np.testing.assert_array_equal(outs[0], outs[1], strict=True)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, n=st.integers(0, 20), d=st.integers(1, 5))
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_linear_scalings_have_the_same_bits_in_both_forms(dtype: str, seed: int, n: int, d: int) -> None:
    rng = np.random.default_rng(seed)
    X = numbers(rng, (n, d)) if seed % 3 else rng.integers(-(2**62), 2**62, (n, d))
    given, outs = (X, rng.normal(size=d), rng.normal(size=d)), [np.empty((n, d), dtype) for _ in range(2)]
    scale._LINEAR.plain(*given, outs[0])
    scale._LINEAR.compiled(*given, outs[1])
    np.testing.assert_array_equal(outs[0], outs[1], strict=True)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, n=st.integers(0, 30), d=st.integers(1, 5), dtype=st.sampled_from(["float32", "float64"]))
def test_sums_of_columns_have_the_same_bits_in_both_forms(seed: int, n: int, d: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    X, weights = rng.normal(size=(n, d)).astype(dtype), rng.random(n)
    plain, compiled = np.zeros((2, d)), np.zeros((2, d))
    moments._SUMMING.plain(X, weights, plain)
    moments._SUMMING.compiled(X, weights, compiled)
    assert plain.tobytes() == compiled.tobytes()


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, n=st.integers(0, 30), g=st.integers(1, 4), n_steps=st.integers(1, 4))
@pytest.mark.parametrize("flags", [(True, False), (True, True), (False, False), (False, True)])
def test_losses_along_lines_have_the_same_bits_in_both_forms(
    flags: tuple[bool, bool], seed: int, n: int, g: int, n_steps: int
) -> None:
    rng = np.random.default_rng(seed)
    weight = np.where(rng.random((n, 1)) < 0.3, 0.0, rng.random((n, 1)))
    targets = np.sign(numbers(rng, (n, g), 0.0) + 0.01) if flags[0] else rng.normal(size=(n, g))
    # The layouts that calls have: broadcast weights cannot be written to, targets of chosen models are in F order.
    at = (
        numbers(rng, (n, g), 0.05),
        rng.normal(size=(n, g)),
        np.asfortranarray(targets),
        np.broadcast_to(weight, (n, g)),
        rng.random((g, n_steps)),
    )
    found = []
    for form in (normal_equations._LINE.plain, normal_equations._LINE.compiled):
        out = np.zeros((g, n_steps)), np.empty((n, g)), np.empty((n, g), np.int8)
        form(at, flags, out)
        found.append(out)
    for plain, compiled in zip(*found, strict=True):
        np.testing.assert_array_equal(plain, compiled, strict=True)


def test_losses_along_lines_are_compiled_once_for_all_layouts() -> None:
    at = [np.ones((4, 2)) for _ in range(4)] + [np.ones((2, 1))]
    for targets in (at[2], np.asfortranarray(at[2]), np.broadcast_to(1.0, (4, 2)), at[2][::-1]):
        out = np.zeros((2, 1)), np.empty((4, 2)), np.empty((4, 2), np.int8)
        normal_equations._LINE.compiled((at[0], at[1], targets, at[3], at[4]), (True, False), out)
    assert len(normal_equations._line_losses.signatures) == 1


def test_packed_triangles_are_added_entry_by_entry() -> None:
    products = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    out = np.ones(3 + 4 + 5)
    expected, place = out.copy(), 0
    for j in range(3):
        for i in range(2 + j + 1):
            expected[place] += products[j, i]
            place += 1
    gram._add_packed(products, 2, out)
    np.testing.assert_array_equal(out, expected)


def test_the_compiled_form_takes_over_after_so_many_numbers() -> None:
    taken: list[str] = []
    kernel = TwoForms(lambda: taken.append("plain"), lambda: taken.append("compiled"), 10_000)
    for size in (100_000, 5_000, 5_000, 10):
        kernel(size)
    with compiling_at_once():
        kernel(10)
    kernel(10)
    # a large call at once; then 5,000 and what a call counts for leave no room for another 5,000
    assert taken == ["compiled", "plain", "compiled", "plain", "compiled", "plain"]


def test_what_an_earlier_process_has_compiled_serves_from_the_first_number_on() -> None:
    arguments = np.ones((2, 4)), np.ones((4, 3)), False, np.zeros((2, 3))
    landmark_tiles._many_distances(*arguments)
    kernel = TwoForms(lambda *given: pytest.fail("it is compiled on disk"), landmark_tiles._many_distances, 10**9)
    kernel(6, *arguments)


def test_what_no_process_has_compiled_is_left_to_numpy_at_first() -> None:
    taken: list[str] = []

    @njit(cache=True)
    def uncompiled(x: float) -> float:
        return x

    TwoForms(lambda x: taken.append("plain"), uncompiled, 10**9)(6, 1.0)
    assert taken == ["plain"]
    assert not uncompiled.signatures


# Each kernel that a process asks for is compiled where Numba's cache does not have it: both are calls of `compile`,
# and those inside another are of kernels that the outer one calls.
# That none of them is in the cache is said by the first line, so that the cache can spare the test their compiling.
FIRST = """
import dkl.process
dkl.process._is_cached = lambda kernel: False
from numba.core.dispatcher import Dispatcher
from sklearn.datasets import load_breast_cancer
compile, names, inside = Dispatcher.compile, [], []
def compiled(dispatcher, signature):
    known = len(dispatcher.overloads)
    inside.append(dispatcher)
    try:
        return compile(dispatcher, signature)
    finally:
        inside.pop()
        if not inside and len(dispatcher.overloads) > known:
            names.append(f"{dispatcher.py_func.__module__}.{dispatcher.py_func.__name__}")
Dispatcher.compile = compiled
X, y = load_breast_cancer(return_X_y=True)
dkl.KernelClassifier(random_state=0, progress=False).fit(X[::4], y[::4])
print("\\n".join(name for name in names if name.startswith("dkl.")))
"""


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_first_fit_of_few_rows_compiles_few_kernels() -> None:
    run = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, check=True, text=True)
    names = run.stdout.split()
    assert names
    # kernels for more rows than these are left alone, and no kernel is compiled for two layouts of the same numbers
    assert not any(
        name.startswith(("dkl.kernels.scale", "dkl.kernels.normal_equations", "dkl.kernels.gram")) for name in names
    )
    assert len(names) <= 12

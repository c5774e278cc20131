"""Meta-kernels are their formulas, are kernels, and refuse parameters without meaning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dkl
from dkl.methods.density.meta_kernels import (
    DeltaMetaKernel,
    MaternMetaKernel,
    PolynomialMetaKernel,
    RBFMetaKernel,
    SumMetaKernel,
    as_meta_kernel,
)
from tests.definitions import density as definitions

CASES: dict[str, tuple[Any, definitions.Values]] = {
    "rbf": (RBFMetaKernel(0.7), definitions.rbf(0.7)),
    "even rbf": (RBFMetaKernel(0.7, even=True), definitions.even(definitions.rbf(0.7))),
    "matern": (MaternMetaKernel(1.3), definitions.matern_three_halves(1.3)),
    "even matern": (MaternMetaKernel(1.3, even=True), definitions.even(definitions.matern_three_halves(1.3))),
    "polynomial": (PolynomialMetaKernel(3, 0.5, 2.0), definitions.polynomial(3, 0.5, 2.0)),
    "even polynomial": (
        PolynomialMetaKernel(3, 0.5, 2.0, even=True),
        definitions.even(definitions.polynomial(3, 0.5, 2.0)),
    ),
    "delta": (DeltaMetaKernel(), definitions.delta),
    "sum": (
        SumMetaKernel((RBFMetaKernel(0.7), DeltaMetaKernel()), (2.0, 0.5)),
        lambda w, v: 2.0 * definitions.rbf(0.7)(w, v) + 0.5 * definitions.delta(w, v),
    ),
}


def frequencies(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 3))


@pytest.mark.parametrize("case", CASES)
def test_a_meta_kernel_is_its_formula(case: str) -> None:
    kernel, values = CASES[case]
    W, V = frequencies(6), np.concatenate([frequencies(6)[2:4], frequencies(3, seed=1)])
    np.testing.assert_allclose(kernel.gram(W, V), definitions.gram(values, W, V), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(kernel.gram(W), kernel.gram(W, W))


@pytest.mark.parametrize("case", CASES)
def test_a_gram_matrix_is_symmetric_and_has_no_negative_eigenvalue(case: str) -> None:
    gram = CASES[case][0].gram(frequencies(40))
    np.testing.assert_array_equal(gram, gram.T)
    values = np.linalg.eigvalsh(gram)
    assert values[0] >= -1e-13 * values[-1]


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("even")])
def test_an_even_meta_kernel_holds_even_functions_alone(case: str) -> None:
    W, V = frequencies(5), frequencies(4, seed=1)
    np.testing.assert_array_equal(CASES[case][0].gram(W, V), CASES[case][0].gram(W, -V))


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("rbf", RBFMetaKernel(0.5)),
        ("matern", MaternMetaKernel(0.5, nu=1.5)),
        ("polynomial", PolynomialMetaKernel(2, 1.0, 0.5)),
        ("delta", DeltaMetaKernel()),
    ],
)
def test_a_name_stands_for_a_meta_kernel_of_the_given_length(name: str, made: Any) -> None:
    assert as_meta_kernel(name, length_scale=0.5) == made
    assert as_meta_kernel(made, length_scale=9.0) is made


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        ("gaussian", "'rbf'"),
        (RBFMetaKernel, "with validate"),
        (RBFMetaKernel(0.0), "length_scale is 0.0"),
        (RBFMetaKernel(float("nan")), "length_scale is nan"),
        (RBFMetaKernel(even="yes"), "even is 'yes'"),  # type: ignore[arg-type]
        (MaternMetaKernel(nu=-1.0), "nu is -1.0"),
        (PolynomialMetaKernel(degree=0), "degree is 0"),
        (PolynomialMetaKernel(degree=True), "degree is True"),
        (PolynomialMetaKernel(constant=0.0), "constant is 0.0"),
        (SumMetaKernel(()), "at least one"),
        (SumMetaKernel((RBFMetaKernel(), "rbf")), "'rbf'"),  # type: ignore[arg-type]
        (SumMetaKernel((RBFMetaKernel(-1.0),)), "length_scale is -1.0"),
        (SumMetaKernel((RBFMetaKernel(),), (1.0, 2.0)), "each of the 1"),
        (SumMetaKernel((RBFMetaKernel(),), (0.0,)), "positive"),
    ],
)
def test_a_parameter_without_meaning_is_named(kernel: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        as_meta_kernel(kernel)


def test_frequencies_of_other_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="same columns"):
        RBFMetaKernel().gram(np.zeros((2, 3)), np.zeros((2, 4)))


def test_meta_kernels_are_saved_as_part_of_a_model(tmp_path: Any) -> None:
    from dkl.model_io import save

    kernel = SumMetaKernel((*(kernel for kernel, _ in list(CASES.values())[:7]),), (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0))
    save(kernel, tmp_path / "kernel.zarr")
    assert dkl.load_model(tmp_path / "kernel.zarr") == kernel

"""The theory of tuned random features holds for the matrices themselves, and its schedules are figure 2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dkl.bounds.tuned import inverse_eigenvalue_bound, schedules
from dkl.methods.density.meta_kernels import RBFMetaKernel
from tests.definitions.density import penalty_matrix


@pytest.mark.parametrize("gamma", [1e-4, 1e-2, 0.1, 1.0, 100.0])
@pytest.mark.parametrize("length_scale", [0.3, 0.8])
def test_the_exact_value_is_the_largest_eigenvalue_of_the_inverse(gamma: float, length_scale: float) -> None:
    G = RBFMetaKernel(length_scale).gram(np.random.default_rng(0).standard_normal((12, 2)))
    truth = 1.0 / np.linalg.eigvalsh(penalty_matrix(G, gamma))[0]
    t = np.linalg.eigvalsh(G)
    assert inverse_eigenvalue_bound(t, gamma=gamma).value == pytest.approx(truth, rel=1e-8)


def test_a_singular_matrix_gives_no_bound() -> None:
    found = inverse_eigenvalue_bound(np.array([0.0, 1.0]), gamma=1.0)
    assert math.isinf(found.value)
    assert found.is_vacuous
    assert "does not cover" in repr(found)


@pytest.mark.parametrize(("loss", "phi"), [("hinge", 1 / 10), ("squared_error", 1 / 6)])
def test_the_schedules_are_figure_2(loss: str, phi: float) -> None:
    N, D, eps, nu = 1e4, 50.0, 0.02, 1.5
    found = schedules(N, D, loss=loss, rate=nu, eps=eps)
    assert found.lam == pytest.approx((N ** (eps - phi), min(N**-eps, D ** (-(nu + 1) / 2))))
    assert found.Lam == pytest.approx((N ** (eps - phi), N**-eps))
    assert found.gamma == pytest.approx((D ** (eps - 1), D**-eps))
    exponential = schedules(N, D, loss=loss, decay="exponential", rate=nu, eps=eps)
    assert exponential.lam[1] == pytest.approx(math.exp(-nu * D / 2) / math.sqrt(D))


def test_rates_that_exclude_each_other_are_said() -> None:
    found = schedules(1e4, 400, loss="hinge")
    assert found.conflicts == ("lam",)
    assert "no value of lam" in repr(found)
    assert schedules(1e12, 4, loss="squared_error").conflicts == ()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"loss": "squared_hinge"}, "neither Lipschitz"),
        ({"decay": "none"}, "decay is 'none'"),
        ({"eps": 0.1}, "eps=0.1"),
        ({"rate": 0.5}, "rate=0.5"),
        ({"n_rows": 1}, "n_rows=1"),
    ],
)
def test_what_the_theory_does_not_cover_is_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        schedules(**{"n_rows": 100, "n_frequencies": 10, **arguments})


@pytest.mark.parametrize(("t", "gamma"), [([-1.0, 1.0], 1.0), ([1.0], 0.0), ([1.0], math.inf), ([], 1.0)])
def test_a_spectrum_without_meaning_is_refused(t: list[float], gamma: float) -> None:
    with pytest.raises(ValueError, match=r"eigenvalues|gamma"):
        inverse_eigenvalue_bound(np.array(t), gamma=gamma)

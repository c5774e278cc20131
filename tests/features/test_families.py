"""Families: the kernels they approximate, the laws of their frequencies, and what they refuse."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy import special, stats

from dkl.features.families import ArcCosine, Cauchy, Coordinates, Family, Gaussian, Laplacian, Matern
from dkl.features.projections import ColumnProjection
from dkl.kernels.maps import map_rows

SAMPLINGS = ("iid", "orthogonal", "structured")
DRAWN: list[Family] = [
    *(Gaussian(1.3, sampling, pairing) for sampling in SAMPLINGS for pairing in ("cos-sin", "phase")),  # type: ignore[arg-type]
    Laplacian(3.0),
    Laplacian(3.0, pairing="phase"),
    Cauchy(1.5),
    Matern(0.5, 1.5),
    Matern(1.5, 1.5, pairing="phase"),
    Matern(2.5, 1.5, sampling="orthogonal"),
    Matern(1.5, 1.5, sampling="structured"),
    *(ArcCosine(order, sampling) for order in (0, 1, 2) for sampling in SAMPLINGS),  # type: ignore[arg-type]
    Coordinates(),
]


def rows(d: int = 5) -> np.ndarray:
    return 0.7 * np.random.default_rng(0).standard_normal((6, d))


def contributions(family: Family, D: int, seed: int = 0, d: int = 5) -> np.ndarray:
    """c^2 phi_j(x) phi_j(y) of each pair of rows and frequency, (6, 6, D): their mean over j approximates k."""
    X = rows(d)
    drawn = family.draw(D, d, seed, np.float64)
    features = map_rows(X, drawn, "float64").reshape(len(X), drawn.columns_a_frequency, D)
    return family.feature_scale(d) ** 2 * np.einsum("ipj,kpj->ikj", features, features)


@pytest.mark.parametrize("family", DRAWN, ids=str)
def test_features_approximate_the_kernel_in_closed_form(family: Family) -> None:
    """Within 5 standard errors of the mean of all frequencies: a factor of sqrt 2 is hundreds of them."""
    # squares of ramps have long tails
    D = 60_000 if getattr(family, "order", 0) == 2 else 20_000
    products = contributions(family, D)
    error = np.abs(products.mean(axis=2) - family.kernel(rows()))
    allowed = 5 * products.std(axis=2) / np.sqrt(D) + 1e-12
    assert (error <= allowed).all()
    assert allowed.max() < 0.1 * np.abs(family.kernel(rows())).max()


@pytest.mark.parametrize("family", [*DRAWN[:6:3], DRAWN[4], Laplacian(3.0), ArcCosine(1), Coordinates()], ids=str)
def test_the_error_falls_like_the_root_of_the_number_of_frequencies(family: Family) -> None:
    def error(D: int) -> float:
        means = [contributions(family, D, seed).mean(axis=2) for seed in range(20)]
        return float(np.sqrt(np.mean(np.square(np.array(means) - family.kernel(rows())))))

    few, many = error(256), error(256 * 16)
    assert 4.0 / 1.35 < few / many < 4.0 * 1.35


@pytest.mark.parametrize(
    ("family", "law"),
    [
        (Gaussian(2.0), stats.norm(scale=0.5)),
        (Gaussian(2.0, "orthogonal"), stats.norm(scale=0.5)),
        (Gaussian(2.0, "structured"), stats.norm(scale=0.5)),
        (Laplacian(2.0), stats.cauchy(scale=0.5)),
        (Cauchy(2.0), stats.laplace(scale=0.5)),
        (Matern(1.5, 2.0), stats.t(3.0, scale=0.5)),
        (Matern(1.5, 2.0, "orthogonal"), stats.t(3.0, scale=0.5)),
        (ArcCosine(1), stats.norm()),
    ],
    ids=lambda value: value.dist.name if hasattr(value, "dist") else str(value),
)
def test_frequencies_follow_their_law(family: Family, law: Any) -> None:
    W = family.draw(20_000, 7, 1, np.float64).projection.dense()
    for column in W.T:
        assert stats.kstest(column, law.cdf).pvalue > 1e-3 / 7


@pytest.mark.parametrize("sampling", ["orthogonal", "iid"])
def test_lengths_of_frequencies_follow_their_law(sampling: Any) -> None:
    W = Gaussian(2.0, sampling).draw(5_000, 9, 2, np.float64).projection.dense()
    assert stats.kstest(4.0 * np.square(W).sum(axis=1), stats.chi2(9).cdf).pvalue > 1e-3


def test_orthogonal_frequencies_are_orthogonal_within_a_block() -> None:
    W = Gaussian(1.0, "orthogonal").draw(20, 8, 0, np.float64).projection.dense()
    directions = W / np.linalg.norm(W, axis=1, keepdims=True)
    for block in (directions[:8], directions[8:16], directions[16:]):
        np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-13)


def test_phases_are_uniform_and_do_not_move_the_frequencies() -> None:
    phased, paired = Gaussian(1.0, pairing="phase").draw(5_000, 3, 4), Gaussian(1.0).draw(5_000, 3, 4)
    assert phased.phases is not None
    assert stats.kstest(phased.phases / (2 * np.pi), "uniform").pvalue > 1e-3
    np.testing.assert_array_equal(phased.projection.dense(), paired.projection.dense())


@pytest.mark.parametrize("family", [Gaussian(1.0), Laplacian(1.0), Cauchy(1.0), ArcCosine(1)], ids=str)
def test_the_first_frequencies_do_not_depend_on_how_many_follow(family: Family) -> None:
    many = family.draw(90_000, 9, 5).projection.dense()
    np.testing.assert_array_equal(family.draw(1_000, 9, 5).projection.dense(), many[:1_000])


@pytest.mark.parametrize("family", DRAWN, ids=str)
def test_float32_frequencies_are_the_float64_ones_rounded(family: Family) -> None:
    narrow, wide = (family.draw(300, 5, 6, dtype).projection.dense() for dtype in (np.float32, np.float64))
    np.testing.assert_array_equal(narrow, wide.astype(narrow.dtype))


def test_another_process_draws_the_same_bits() -> None:
    program = (
        "import hashlib; from dkl.features.families import Gaussian\n"
        "for sampling in ('iid', 'orthogonal', 'structured'):\n"
        "    W = Gaussian(2.0, sampling).draw(500, 33, 8).projection.dense()\n"
        "    print(hashlib.sha256(W.tobytes()).hexdigest())\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"OPENBLAS_NUM_THREADS": n}
        ).stdout
        for n in ("1", "2")
    ]
    assert runs[0] == runs[1]


def test_other_seeds_draw_other_frequencies() -> None:
    first, second = (Gaussian(1.0).draw(100, 4, seed).projection.dense() for seed in (0, 1))
    assert not np.isin(first, second).any()


def test_coordinates_take_each_column_once_if_no_number_is_given() -> None:
    projection = Coordinates().draw(None, 6, 0).projection
    assert isinstance(projection, ColumnProjection)
    np.testing.assert_array_equal(projection.columns, np.arange(6))


def test_kernels_that_are_equal_by_theory_are_equal() -> None:
    X = rows()
    distances = np.linalg.norm(X[:, None] - X, axis=2)
    np.testing.assert_allclose(Matern(0.5, 2.0).kernel(X), np.exp(-distances / 2.0), rtol=1e-12)
    three_halves = (1 + math.sqrt(3) * distances / 2) * np.exp(-math.sqrt(3) * distances / 2)
    np.testing.assert_allclose(Matern(1.5, 2.0).kernel(X), three_halves, rtol=1e-12)
    np.testing.assert_allclose(Matern(2000.0, 2.0).kernel(X), Gaussian(2.0).kernel(X), rtol=1e-3)
    np.testing.assert_allclose(np.diag(ArcCosine(0).kernel(X)), 1.0)
    np.testing.assert_allclose(np.diag(ArcCosine(1).kernel(X)), np.square(X).sum(axis=1))
    np.testing.assert_allclose(np.diag(ArcCosine(2).kernel(X)), 3 * np.square(X).sum(axis=1) ** 2)
    np.testing.assert_allclose(Laplacian(2.0).kernel(X[:1], X[1:2]), np.exp(-np.abs(X[0] - X[1]).sum() / 2))


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_closed_forms_of_matern_are_those_of_the_bessel_function(nu: float) -> None:
    X, Y = np.random.default_rng(0).standard_normal((2, 40, 3))
    Y[:5] = X[:5]
    r = np.sqrt(2.0 * nu) * np.linalg.norm(X[:, None] - Y, axis=2) / 1.7
    with np.errstate(invalid="ignore"):
        by_bessel = np.where(r > 0.0, 2.0 ** (1.0 - nu) / special.gamma(nu) * r**nu * special.kv(nu, r), 1.0)
    np.testing.assert_allclose(Matern(nu, 1.7).kernel(X, Y), by_bessel, rtol=1e-11)
    # the general formula that other smoothness takes comes to the same near these
    np.testing.assert_allclose(Matern(nu + 1e-9, 1.7).kernel(X, Y), by_bessel, rtol=1e-6)


def test_kernels_of_close_rows_are_close_to_one() -> None:
    X = np.array([[0.0], [0.0], [1e-9], [1e-300]])
    for nu in (0.3, 1.0, 2.5, 100.0, 5000.0):
        np.testing.assert_allclose(Matern(nu, 1.0).kernel(X), 1.0, atol=1e-5)


REFUSED: dict[str, tuple[Any, str]] = {
    "sigma 0": (lambda: Gaussian(0.0).validate(), "Gaussian: sigma is 0.0; it must be a positive finite number"),
    "sigma < 0": (lambda: Laplacian(-1.0).draw(3, 2, 0), "Laplacian: sigma is -1.0"),
    "sigma nan": (lambda: Cauchy(math.nan).validate(), "Cauchy: sigma is nan"),
    "sigma text": (lambda: Gaussian("mean").validate(), "Gaussian: sigma is 'mean'"),  # type: ignore[arg-type]
    "nu 0": (lambda: Matern(0.0).validate(), "Matern: nu is 0.0; the smoothness must be"),
    "sampling": (lambda: Gaussian(1.0, "sobol").validate(), "Gaussian: sampling is 'sobol'"),  # type: ignore[arg-type]
    "pairing": (lambda: Gaussian(1.0, pairing="both").validate(), "pairing is 'both'"),  # type: ignore[arg-type]
    "not isotropic": (lambda: Laplacian(1.0, "orthogonal").validate(), "needs frequencies whose direction is uniform"),
    "nor structured": (lambda: Cauchy(1.0, "structured").validate(), "and those of Cauchy are not; use sampling='iid'"),
    "order": (lambda: ArcCosine(3).validate(), "ArcCosine: order is 3; it must be 0, 1 or 2"),
    "no number": (lambda: Gaussian("median").draw(3, 2, 0), "call with_bandwidth(sigma) first"),
    "D = 0": (lambda: Gaussian(1.0).draw(0, 2, 0), "n_frequencies is 0; it must be a whole number of at least 1"),
    "D = 2.5": (lambda: ArcCosine(1).draw(2.5, 2, 0), "n_frequencies is 2.5"),  # type: ignore[arg-type]
    "d = 0": (lambda: Coordinates().draw(3, 0, 0), "n_columns is 0"),
    "columns": (lambda: Gaussian(1.0).kernel(np.ones((2, 3)), np.ones((2, 4))), "X has 3 columns and Y has 4"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)


def test_a_bandwidth_is_set_on_a_copy() -> None:
    family = Matern(1.5, sampling="orthogonal")
    assert family.needs_bandwidth
    assert family.with_bandwidth(2) == Matern(1.5, 2.0, "orthogonal")
    assert family.sigma == "median"
    assert not ArcCosine(1).needs_bandwidth
    assert Coordinates().with_bandwidth(3.0) == Coordinates()

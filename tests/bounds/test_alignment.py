"""What alignment in a divergence ball promises holds over many draws, and is not much looser than it must be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dkl.bounds.alignment import (
    alignment_deviation,
    alignment_gap,
    candidate_deviation,
    rademacher_bound,
    risk_bound,
)
from dkl.solvers.kernel_alignment import maximise_alignment

W = np.linspace(0.2, 3.0, 12)


def largest(values: np.ndarray, rho: float, k: float = 2.0) -> float:
    """sup q.values in the ball."""
    return float(maximise_alignment(values, rho, k) @ values)


def alignments(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """T^ of each w: the mean over i != j of y_i y_j cos(w (x_i - x_j)); the squares of sums hold n terms i = j."""
    sums = np.exp(1j * np.outer(W, x)) @ y
    return (np.abs(sums) ** 2 - len(x)) / (len(x) * (len(x) - 1.0))


@pytest.mark.parametrize(("rho", "k"), [(0.0, 2.0), (3.0, 2.0), (3.0, 4.0)])
def test_alignment_deviates_no_more_than_lemma_1_for_all_weights_at_once(rho: float, k: float) -> None:
    """Rows in two points, of unequal classes: the deviation is as large as labels can make it."""
    rng, n, eps, draws, fails, found = np.random.default_rng(0), 50, 0.1, 120, 0, []
    share = 0.854
    bound = alignment_deviation(n, rho, k=k, eps=eps).value
    for _ in range(draws):
        x, y = 0.1 * rng.standard_normal(n), np.where(rng.random(n) < share, 1.0, -1.0)
        error = alignments(x, y) - (2.0 * share - 1.0) ** 2 * np.exp(-0.01 * W**2)
        found.append(max(largest(error, rho, k), largest(-error, rho, k)))
        fails += found[-1] > bound
    assert fails <= eps * draws
    if rho == 0.0:
        assert np.quantile(found, 1.0 - eps) > 0.3 * bound
    # the printed form
    assert bound < 4.0 * math.sqrt((1.0 + rho) * math.log(math.sqrt(2.0) / eps) / n)


def test_the_tail_of_lemma_1_solves_its_equation() -> None:
    for eps in (0.5, 0.05, 1e-9):
        a = alignment_deviation(2_000, 3.0, eps=eps).value ** 2 * 1_000 / 4.0
        assert math.sqrt(a) * math.exp(-(a - 1.0) / 2.0) == pytest.approx(eps)
    assert alignment_deviation(2_000, 3.0, feature_norm=2.0).value == 4.0 * alignment_deviation(2_000, 3.0).value


@pytest.mark.parametrize("rho", [0.0, 0.01, 1.0])
def test_drawn_candidates_align_as_well_as_their_law_within_lemma_2(rho: float) -> None:
    """Candidates worth 1 or -1, three to seven; the law's own best is that of ten candidates of equal chance."""
    rng, size, eps = np.random.default_rng(1), 3_000, 0.1
    best = largest(np.repeat([1.0, -1.0], [3, 7]), rho)
    bound = candidate_deviation(size, rho, eps=eps)
    gaps = [abs(largest(np.where(rng.random(size) < 0.3, 1.0, -1.0), rho) - best) for _ in range(50)]
    assert np.mean(np.array(gaps) > bound.value) <= eps
    if rho == 0.0:
        assert bound.terms["mean"] == 0.0
        assert np.quantile(gaps, 1.0 - eps) > 0.2 * bound.value


def test_theorem_1_is_the_sum_of_its_lemmas_and_vacuous_at_the_papers_adult_setting() -> None:
    n, D, rho = 32_561, 20_000, 240.0
    found = alignment_gap(n, D, rho, eps=0.15)
    one, other = alignment_deviation(n, rho, eps=0.05), candidate_deviation(D, rho, eps=0.05)
    assert found.value == pytest.approx(2.0 * one.value + other.value)
    assert found.is_vacuous
    assert "vacuous" in repr(found)
    assert not alignment_gap(1e6, 1e6, 1.0).is_vacuous


def test_learned_weights_align_almost_as_well_as_the_best() -> None:
    """Theorem 1 over draws of rows and of candidates, from a family of twelve frequencies."""
    rng, n, rho, eps, fails = np.random.default_rng(2), 100, 0.5, 0.2, 0
    truth = 0.5 * np.exp(-(W**2)) * (1.0 - np.cos(1.5 * W))
    best, size = largest(truth, rho), 5_000
    bound = alignment_gap(n, size, rho, eps=eps).value
    for _ in range(50):
        y = rng.choice([-1.0, 1.0], n)
        estimate = alignments(rng.standard_normal(n) + 0.75 * y, y)
        drawn = rng.integers(0, 12, size)
        fails += best - maximise_alignment(estimate[drawn], rho) @ truth[drawn] > bound
    assert fails <= eps * 50


@pytest.mark.parametrize(("rho", "k"), [(0.0, 2.0), (3.0, 2.0), (3.0, 4.0)])
def test_the_complexity_is_above_rademacher_averages_and_close(rho: float, k: float) -> None:
    rng, n, size = np.random.default_rng(3), 200, 400
    waves = np.exp(1j * np.outer(rng.standard_normal(size) * 20.0, rng.uniform(-1.0, 1.0, n)))
    squares = [np.abs(waves @ rng.choice([-1.0, 1.0], n)) ** 2 for _ in range(50)]
    average = 3.0 * np.mean([math.sqrt(largest(v, rho, k)) for v in squares]) / n
    bound = rademacher_bound(n, rho, norm=3.0, k=k)
    assert 0.7 * bound.value < average <= bound.value
    # the printed form
    assert bound.value < 3.0 * math.sqrt(2.0 * (1.0 + rho) / n)
    assert rademacher_bound(3, 3.0).is_vacuous


def test_machines_err_no_more_often_than_theorem_2_says() -> None:
    """The best of many machines on one column, a tenth of the labels wrong; the bound says something."""
    rng, n, norm = np.random.default_rng(4), 4_000, 2.0

    def draw(size: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.choice([-1.0, 1.0], size) * rng.uniform(0.5, 1.0, size)
        return x, np.sign(x) * np.where(rng.random(size) < 0.1, -1.0, 1.0)

    # sqrt(q) phi of one kept frequency of four: q = 1 needs rho = 3
    for _ in range(20):
        x, y = draw(n)
        w = max(W, key=lambda w: float(np.mean(y * np.sin(w * x))))
        bound = risk_bound(y * norm * np.sin(w * x), 3.0, norm=norm)
        fresh, labels = draw(20_000)
        assert np.mean(labels * np.sin(w * fresh) <= 0.0) <= bound.value
        assert not bound.is_vacuous
    ramp = np.clip(1.0 - y * norm * np.sin(w * x), 0.0, 1.0).mean()
    confidence = math.sqrt(math.log(20.0) / 8_000)
    complexity = rademacher_bound(n, 3.0, norm=norm).value
    assert bound.value == pytest.approx(ramp + 2.0 * complexity + confidence)


@pytest.mark.parametrize("given", [{"rho": -1.0}, {"k": 1.5}, {"feature_norm": 0.0}, {"n_rows": 1}, {"eps": 0.0}])
def test_numbers_out_of_range_are_refused(given: dict[str, Any]) -> None:
    name = next(iter(given))
    with pytest.raises(ValueError, match=name):
        alignment_deviation(**{"n_rows": 100, "rho": 1.0, **given})


def test_machines_need_a_length_and_a_margin_and_pools_a_candidate() -> None:
    with pytest.raises(ValueError, match="n_candidates is 0"):
        candidate_deviation(0, 1.0)
    with pytest.raises(ValueError, match="norm is a length"):
        rademacher_bound(10, 1.0, norm=0.0)
    with pytest.raises(ValueError, match="nu is a margin"):
        risk_bound(np.ones(10), 1.0, norm=1.0, nu=0.0)

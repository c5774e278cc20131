"""The bounds on learned similarities hold: over many draws of the rows they fail no more often than they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dkl.bounds.similarity import landmark_bound
from dkl.methods.posterior.weights import pseudo_posterior


def draw(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Two classes on a line."""
    y = rng.integers(0, 2, n)
    return rng.standard_normal(n) + 1.5 * y, y


def loss_around(x: float, label: int, W: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(1 - s cos(w (x - x_j))) / 2, the mean over rows j, for each w."""
    signs = np.where(y == label, 1.0, -1.0)
    return (1.0 - np.mean(signs[:, None] * np.cos(np.outer(x - X, W)), axis=0)) / 2.0


def expected_loss(x: float, label: int, W: np.ndarray) -> np.ndarray:
    """The same under the law of `draw`: E cos(w (x - X)) = exp(-w^2 / 2) cos(w (x - mean))."""
    same, other = 1.5 * label, 1.5 * (1 - label)
    damping = 0.5 * np.exp(-(W**2) / 2.0)
    return (1.0 - damping * (np.cos(W * (x - same)) - np.cos(W * (x - other)))) / 2.0


def test_the_landmark_bound_fails_no_more_often_than_eps() -> None:
    rng, n, eps, fails, slack = np.random.default_rng(0), 60, 0.2, 0, []
    for _ in range(300):
        X, y = draw(n, rng)
        W = rng.standard_normal((3, 8))
        losses = np.stack(
            [loss_around(X[one], y[one], W[one], np.delete(X, one), np.delete(y, one)) for one in range(3)]
        )
        truth = np.stack([expected_loss(X[one], y[one], W[one]) for one in range(3)])
        posteriors = np.stack([pseudo_posterior(row, 1.0, n) for row in losses])
        bound = landmark_bound(losses, posteriors, n_rows=n, t=math.sqrt(n), eps=eps)
        gap = bound.value - np.sum(posteriors * truth, axis=1)
        fails += bool((gap < 0.0).any())
        slack.append(gap)
    assert fails <= eps * 300
    assert np.mean(slack) < 1.0


def test_the_bound_is_the_sum_of_its_terms_and_smallest_at_the_pseudo_posterior() -> None:
    rng = np.random.default_rng(1)
    losses, n = rng.random((4, 16)), 500
    t = 2.0 * math.sqrt(n)
    best = np.stack([pseudo_posterior(row, 2.0, n) for row in losses])
    bound = landmark_bound(losses, best, n_rows=n, t=t)
    terms = bound.terms
    total = terms["loss"] + terms["KL / t"] + terms["variance"] + terms["confidence"]
    np.testing.assert_allclose(bound.value, total, rtol=1e-14)
    # the Gibbs variational principle: Q.L + KL / t is at least -log(mean exp(-t L)) / t, with equality there
    free_energy = -np.log(np.mean(np.exp(-t * losses), axis=1)) / t
    np.testing.assert_allclose(terms["loss"] + terms["KL / t"], free_energy, rtol=1e-9)
    for _ in range(20):
        other = rng.dirichlet(np.ones(16), size=4)
        assert (landmark_bound(losses, other, n_rows=n, t=t).value >= bound.value - 1e-12).all()


def test_one_row_that_was_fixed_before_is_theorem_1() -> None:
    losses, uniform = np.full((1, 4), 0.4), np.full((1, 4), 0.25)
    alone = landmark_bound(losses, uniform, n_rows=1_000, t=30.0, eps=0.1)
    assert "theorem 1 (tightened)" in repr(alone)
    assert alone.value == pytest.approx(0.4 + 30.0 / (8 * 999) + math.log(10.0) / 30.0)


def test_a_bound_that_says_nothing_says_so() -> None:
    uniform = np.full((2, 4), 0.25)
    assert landmark_bound(np.full((2, 4), 0.5), uniform, n_rows=100, t=10.0).is_vacuous
    assert "vacuous" in repr(landmark_bound(np.full((2, 4), 0.5), uniform, n_rows=100, t=10.0))
    assert not landmark_bound(np.array([[0.1] * 4, [0.5] * 4]), uniform, n_rows=10_000, t=100.0).is_vacuous


@pytest.mark.parametrize("given", [{"t": 0.0}, {"t": math.inf}, {"eps": 0.0}, {"eps": 1.0}, {"n_rows": 1}])
def test_what_has_no_meaning_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"t must|eps is|n_rows is"):
        landmark_bound(np.full((1, 2), 0.5), np.full((1, 2), 0.5), **{"n_rows": 10, "t": 1.0, **given})

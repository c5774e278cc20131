"""The bounds on a kernel's loss over pairs hold over many draws of the rows, and where they can be tight they are."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from dkl.bounds.certificate import Bound
from dkl.bounds.pair_loss import divergence_bound, first_order_bound, second_order_bound
from dkl.methods.posterior.weights import pseudo_posterior
from dkl.solvers.kernel_alignment import maximise_alignment

EPS, DRAWS = 0.05, 4_000
W = np.linspace(0.2, 3.0, 8)


def losses_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean of (1 - s cos(w (x_i - x_j))) / 2 over i != j, for each w."""
    signs = np.where(y[:, None] == y, 1.0, -1.0)
    waves = np.stack([signs * np.cos(w * (x[:, None] - x)) for w in W])
    n = len(x)
    return (1.0 - (waves.sum(axis=(1, 2)) - n) / (n * (n - 1))) / 2.0


# two classes alike in size, N(0, 1) and N(1.5, 1): a difference is N(0, 2) within and N(1.5, 2) across
TRUTH = (1.0 - 0.5 * np.exp(-(W**2)) * (1.0 - np.cos(1.5 * W))) / 2.0


def test_the_kl_bounds_fail_no_more_often_than_eps() -> None:
    rng, n, eps = np.random.default_rng(0), 40, 0.2
    fails = np.zeros(3)
    for _ in range(200):
        y = rng.integers(0, 2, n)
        losses = losses_of(rng.standard_normal(n) + 1.5 * y, y)
        t = math.sqrt(n)
        posterior, sharp = pseudo_posterior(losses, 1.0, n), pseudo_posterior(losses, 100.0, n)
        bounds = [
            (posterior, second_order_bound(losses, posterior, n_rows=n, t=t, eps=eps)),
            (sharp, second_order_bound(losses, sharp, n_rows=n, t=t, eps=eps)),
            (posterior, first_order_bound(losses, posterior, n_rows=n, t=2 * t, eps=eps)),
        ]
        fails += [q @ TRUTH > bound.value for q, bound in bounds]
    assert (fails <= eps * 200).all()


@pytest.mark.parametrize("mu", [1.5, 2.0, 4.0])
def test_the_divergence_bound_holds_for_the_best_weights_in_its_ball(mu: float) -> None:
    rng, n, eps, fails = np.random.default_rng(1), 40, 0.2, 0
    for _ in range(200):
        y = rng.integers(0, 2, n)
        losses = losses_of(rng.standard_normal(n) + 1.5 * y, y)
        q = maximise_alignment(-losses, 0.5, mu)
        fails += q @ TRUTH > divergence_bound(losses, q, n_rows=n, mu=mu, eps=eps).value
    assert fails <= eps * 200


def label_losses(shares: list[float], n: int) -> tuple[np.ndarray, float]:
    """Losses of the kernel 1 over many draws of labels, and the expected one: the share of pairs of unlike labels."""
    p = np.asarray(shares)
    counts = np.random.default_rng(2).multinomial(n, p, size=DRAWS)
    return 1.0 - (counts * (counts - 1.0)).sum(axis=1) / (n * (n - 1.0)), float(1.0 - p @ p)


def failing(bound: Callable[[float], Bound], shares: list[float], n: int) -> float:
    """How often the truth is above the bound, for one hypothesis: the excess does not depend on the loss."""
    losses, truth = label_losses(shares, n)
    return float(np.mean(truth > losses + bound(0.0).value))


@pytest.mark.parametrize("shares", [[0.854, 0.146], [0.7, 0.2, 0.1], [0.5, 0.125, 0.125, 0.125, 0.125]])
@pytest.mark.parametrize("mu", [1.2, 2.0, 3.0, 4.0, 8.0])
def test_theorem_4_holds_in_the_corrected_form(mu: float, shares: list[float]) -> None:
    one = np.ones(1)
    assert failing(lambda loss: divergence_bound(one * loss, one, n_rows=10_000, mu=mu), shares, 10_000) <= EPS


@pytest.mark.parametrize(("mu", "often"), [(3.0, 0.11), (4.0, 0.25), (8.0, 0.40)])
def test_theorem_4_as_printed_fails_above_two(mu: float, often: float) -> None:
    """Two classes of the sizes where the loss varies most, n = 10,000, Q = P."""
    one = np.ones(1)
    printed = failing(
        lambda loss: divergence_bound(one * loss, one, n_rows=10_000, mu=mu, as_printed=True), [0.854, 0.146], 10_000
    )
    assert printed == pytest.approx(often, abs=0.02)


def test_the_variance_of_the_loss_exceeds_lemma_6_and_keeps_to_the_corrected_one() -> None:
    for n in (2, 3, 5):
        losses, _ = label_losses([0.7, 0.3], n)
        assert losses.var() <= 1.0 / (2.0 * n)
    losses, _ = label_losses([0.5, 0.5], 2)
    assert losses.var() > 1.0 / (4.0 * 2)


def test_theorem_3_is_tight_where_the_loss_varies_most() -> None:
    n, one = 10_000, np.ones(1)
    t = math.sqrt(4.0 * n * -math.log(EPS))
    losses, truth = label_losses([0.854, 0.146], n)
    excess = second_order_bound(np.zeros(1), one, n_rows=n, t=t).value
    assert excess == pytest.approx(math.sqrt(-math.log(EPS) / n), rel=1e-9)
    quantile = np.quantile(truth - losses, 1.0 - EPS)
    assert 0.4 * excess < quantile <= excess


def test_bounds_are_the_sums_of_their_terms_and_least_at_the_pseudo_posterior() -> None:
    rng = np.random.default_rng(3)
    losses, n, beta = rng.random(16), 400, 1.5
    best = pseudo_posterior(losses, beta, n)
    t = beta * math.sqrt(n)
    for bound_of, at in ((second_order_bound, t), (first_order_bound, 2.0 * t)):
        bound = bound_of(losses, best, n_rows=n, t=at)
        parts = ("loss", "KL term", "variance", "confidence")
        assert bound.value == pytest.approx(sum(bound.terms[name] for name in parts))
        for other in rng.dirichlet(np.ones(16), size=10):
            assert bound_of(losses, other, n_rows=n, t=at).value >= bound.value - 1e-12
    assert "corollary 5 (corrected)" in repr(divergence_bound(losses, best, n_rows=n))
    assert "theorem 4 (as printed)" in repr(divergence_bound(losses, best, n_rows=n, mu=3.0, as_printed=True))
    chi = np.mean((16 * best) ** 2) - 1
    expected = best @ losses + math.sqrt((chi + 1) / (2 * n * 0.05))
    assert divergence_bound(losses, best, n_rows=n).value == pytest.approx(expected)


def test_a_bound_that_says_nothing_says_so() -> None:
    half, q = np.full(4, 0.5), np.full(4, 0.25)
    assert second_order_bound(half, q, n_rows=100, t=10.0).is_vacuous
    assert "vacuous" in repr(divergence_bound(half, q, n_rows=100))
    assert not second_order_bound(0.5 * half, q, n_rows=10_000, t=100.0).is_vacuous


@pytest.mark.parametrize(
    ("given", "said"),
    [({"t": 0.0}, "t must"), ({"t": math.inf}, "t must"), ({"eps": 1.0}, "eps is"), ({"n_rows": 1}, "pairs of rows")],
)
def test_what_has_no_meaning_is_refused(given: dict[str, float], said: str) -> None:
    for bound in (first_order_bound, second_order_bound):
        with pytest.raises(ValueError, match=said):
            bound(np.ones(1), np.ones(1), **{"n_rows": 10, "t": 1.0, **given})
    with pytest.raises(ValueError, match="mu is the order"):
        divergence_bound(np.ones(1), np.ones(1), n_rows=10, mu=1.0)

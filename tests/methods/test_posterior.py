"""Losses of candidates from class sums, and the pseudo-posterior."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.methods.posterior import weights as posterior
from tests.definitions import selection as definition


def pair_sums(X: np.ndarray, W: np.ndarray, S: np.ndarray) -> np.ndarray:
    angles = X @ W.T
    return np.stack([np.cos(angles).T @ S, np.sin(angles).T @ S])


@pytest.mark.parametrize("n_classes", [2, 3, 5])
def test_class_sums_give_the_loss_over_all_pairs_of_different_rows(n_classes: int) -> None:
    rng = np.random.default_rng(1)
    X, W = rng.standard_normal((15, 4)), rng.standard_normal((6, 4))
    codes = np.concatenate([np.arange(n_classes), rng.integers(0, n_classes, 15 - n_classes)])
    S = definition.indicators(codes, n_classes)
    losses = posterior.pair_losses(pair_sums(X, W, S), S.sum(axis=0))
    np.testing.assert_allclose(losses, definition.pair_losses(X, W, codes), rtol=1e-12)


def test_a_weight_of_two_is_the_row_twice() -> None:
    rng = np.random.default_rng(2)
    X, W = rng.standard_normal((10, 3)), rng.standard_normal((6, 3))
    codes, weights = np.tile([0, 1], 5), rng.integers(0, 4, 10)
    S = definition.indicators(codes, 2) * weights[:, None]
    losses = posterior.pair_losses(pair_sums(X, W, S), S.sum(axis=0))
    repeated = definition.pair_losses(np.repeat(X, weights, axis=0), W, np.repeat(codes, weights))
    np.testing.assert_allclose(losses, repeated, rtol=1e-12)


def test_rows_that_weigh_one_or_less_have_no_pairs() -> None:
    with pytest.raises(ValueError, match=r"pairs of rows.*sum to 0\.75"):
        posterior.pair_losses(np.zeros((2, 3, 2)), np.array([0.5, 0.25]))


def test_the_posterior_is_its_definition_and_falls_with_the_loss() -> None:
    losses = np.random.default_rng(3).random(50)
    weights = posterior.pseudo_posterior(losses, 0.3, 400.0)
    np.testing.assert_allclose(weights, definition.pseudo_posterior(losses, 0.3, 400.0), rtol=1e-12)
    assert np.all(np.diff(weights[np.argsort(losses)]) <= 0.0)


def test_exponents_of_ten_thousand_and_more_do_not_underflow() -> None:
    losses = 0.5 + 1e-9 * np.arange(1000.0)
    weights = posterior.pseudo_posterior(losses, 1e9, 1e6)
    assert np.isfinite(weights).all()
    # neighbours differ by beta sqrt(n) 1e-9 = 1,000 in the exponent
    assert weights[0] == pytest.approx(1.0)
    uniform = posterior.pseudo_posterior(losses + 1e12, 1.0, 1e12)
    assert uniform.sum() == pytest.approx(1.0)


def test_a_beta_of_zero_is_the_prior() -> None:
    losses = np.random.default_rng(4).random(8)
    np.testing.assert_array_equal(posterior.pseudo_posterior(losses, 0.0, 1e4), np.full(8, 0.125))


@pytest.mark.parametrize("beta", [-1.0, np.nan, np.inf])
def test_a_beta_without_a_meaning_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match="beta must be a finite number >= 0"):
        posterior.pseudo_posterior(np.ones(3), beta, 10.0)

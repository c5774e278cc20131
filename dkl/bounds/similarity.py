"""PAC-Bayesian bounds on the alignment loss of learned similarities to single rows (Letarte et al. 2019)."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import xlogy

from dkl.bounds.certificate import Bound, check_losses_of_pairs


def landmark_bound(
    losses: np.ndarray,
    weights: np.ndarray,
    *,
    n_rows: float,
    t: float,
    eps: float = 0.05,
    chosen_from: float | None = None,
) -> Bound:
    """For all landmarks at once: the expected loss of each one's learned similarity.

    ``L_l <= Q_l.L^_l + (KL(Q_l || uniform) + t^2 / (8 (n - 1)) + ln(c / eps)) / t`` with c = n_L. The printed form has
    ``t^2 / (2 (n - 1))``: losses are in [0, 1], so Hoeffding's lemma gives 8. One landmark is theorem 1. Landmarks that
    were chosen by looking at the rows, the same number of each class, say, need c = n, so that the bound holds for
    every row at once.

    Parameters
    ----------
    losses : ndarray of shape (n_landmarks, D)
        Empirical losses of the candidates, each landmark left out of its own.
    weights : ndarray of shape (n_landmarks, D)
        The posterior Q of each landmark; the prior is uniform.
    n_rows : float
        n, the rows that the losses were computed on, the landmark among them.
    t : float
        Chosen before the rows were seen; ``beta sqrt(n)`` is what the pseudo-posterior minimises.
    eps : float
        The bound fails with this probability at most.
    chosen_from : float or None
        c: the rows among which landmarks were chosen by what is in them; None where they were drawn blindly, which
        makes it n_L.

    Returns
    -------
    Bound
        Of shape (n_landmarks,); vacuous from 1/2, the loss of a similarity that is 0 everywhere.

    Raises
    ------
    ValueError
        If `t` is not positive, `eps` not between 0 and 1, or there are no two rows.

    References
    ----------
    Letarte, Morvant & Germain 2019, theorem 1 and section 4.2.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.bounds.similarity import landmark_bound
    >>> losses = np.array([[0.3, 0.5], [0.4, 0.4]])
    >>> landmark_bound(losses, np.full((2, 2), 0.5), n_rows=10_001, t=100.0).value.round(3)
    array([0.438, 0.438])
    """
    check_losses_of_pairs(n_rows, t, eps)
    loss = np.sum(weights * losses, axis=1)
    # KL(Q_l || uniform), the price of weights that were learned, for each landmark by itself.
    divergence = kl_from_uniform(weights)
    # Hoeffding's lemma for a mean of n - 1 losses in [0, 1]: the logarithm of the moment at t is at most t^2 / (8 (n -
    # 1)).
    variance = t / (8.0 * (n_rows - 1.0))
    # A union over all landmarks that might have been chosen.
    confidence = math.log((len(weights) if chosen_from is None else chosen_from) / eps) / t
    number = "theorem 1" if len(weights) == 1 and chosen_from is None else "section 4.2"
    return Bound(
        theorem=f"Letarte et al. 2019, {number} (tightened)",
        value=loss + divergence / t + variance + confidence,
        terms={
            "loss": loss,
            "KL": divergence,
            "KL / t": divergence / t,
            "variance": variance,
            "confidence": confidence,
            "t": t,
            "n": n_rows,
        },
        probability=1.0 - eps,
        vacuous_from=0.5,
        covers="the expected loss of every landmark's similarity, for rows drawn independently from one law, "
        "with candidates, bandwidth and t chosen before the rows were seen",
        excludes="k-means landmarks; a bandwidth, scaling or beta chosen on the same rows; weights of rows that are no "
        "repetitions of independent draws; the error of a machine on the features",
    )


def kl_from_uniform(weights: np.ndarray) -> np.ndarray:
    """KL(Q || uniform) = ln D + sum Q ln Q of each row of weights.

    Parameters
    ----------
    weights : ndarray of shape (..., D)
    """
    return np.asarray(np.log(weights.shape[-1]) + xlogy(weights, weights).sum(axis=-1))

"""What theorems 4.1 to 4.4 of Bullins, Zhang & Zhang 2018 say of a fitted model, in forms that hold, as numbers.

The printed forms have slips, each corrected here and tested by simulation. 4.1: the gradient's bound is (1 + C n)
sqrt(n), not (1 + 2 C) sqrt(n). 4.2: margins compare by the square root, for hard margins. 4.3: the cosine's constant
was lost, and theta is free in the uniform form only. 4.4: a squared modulus of a sample is biased, and dual weights
must not depend on the sampled rows. 4.5 has no constants: there is nothing to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq

__all__ = [
    "GeneralizationBound",
    "generalization_bound",
    "guaranteed_regret",
    "kernel_complexity",
    "margin_ratio",
    "normalised_margins",
    "played_regret",
    "potential_accuracy",
    "uniform_sample_size",
]


def guaranteed_regret(
    C: float, n_rows: float, rounds: int, *, loss: Literal["hinge", "squared_hinge"] = "hinge"
) -> float:
    """How far max F(., lambda) can lie above the mean of F(alpha_t, lambda_t), before a round is played: theorem 4.1.

    With the steps of the theorem, exact projections and lambda the mean of the answers. Hinge: 3 D G / (2 sqrt(T)) with
    D = C sqrt(n), G = (1 + C n) sqrt(n), steps D / (G sqrt(t)) (Zinkevich 2003). Squared hinge: F is 1/C'-strongly
    concave, C' = 2 C, and C' G^2 (1 + log T) / (2 T) with steps C' / t (Hazan, Agarwal & Kale 2007), where alpha <=
    C' sqrt(n) bounds G by (1 + C' n^(3/2) + sqrt(n)) sqrt(n).

    Parameters
    ----------
    C : float
    n_rows : float
        Rows, or the sum of their weights.
    rounds : int
        T.
    loss : {"hinge", "squared_hinge"}

    Returns
    -------
    float
        In the units of the objective, which grows like C n.

    Examples
    --------
    >>> from dkl.selection.margins import guaranteed_regret
    >>> round(guaranteed_regret(1.0, 100, rounds=10_000))
    152
    """
    root = np.sqrt(n_rows)
    if loss == "squared_hinge":
        curvature = 2.0 * C
        steepest = (1.0 + curvature * n_rows * root + root) * root
        return float(curvature * steepest**2 * (1.0 + np.log(rounds)) / (2.0 * rounds))
    return float(1.5 * C * root * (1.0 + C * n_rows) * root / np.sqrt(rounds))


def played_regret(
    steps: Sequence[float], gradients: Sequence[float], diameter: float, weights: Sequence[float] | None = None
) -> float:
    """The same after the rounds, for any steps and weights, from the gradients that occurred.

    (D^2 W + sum p eta |g|^2) / (2 sum p) for rounds of weight p in lambda and in the mean of F(alpha_t, lambda_t). W
    sums up the increases of p / eta (T for the weights t eta_t of `dkl.selection.game`): large gradients of the first
    rounds then cost little, where the bound above takes them for all rounds.

    Parameters
    ----------
    steps : sequence of float
        eta_t.
    gradients : sequence of float
        |g_t|^2, summed over rows with their weights.
    diameter : float
        D, of the feasible set: C sqrt(n) for the hinge, C' n for the squared hinge with its box.
    weights : sequence of float or None
        p_t; None weighs all rounds alike.
    """
    eta = np.asarray(steps, dtype=np.float64)
    p = np.ones_like(eta) if weights is None else np.asarray(weights, dtype=np.float64)
    increases = np.diff(p / eta, prepend=0.0).clip(0.0).sum()
    return float((diameter**2 * increases + (p * eta) @ np.asarray(gradients, dtype=np.float64)) / (2.0 * p.sum()))


def margin_ratio(lower: float, upper: float) -> float:
    """A bound from below of M / M*, the margin on the features found over the largest one: corollary 4.2.

    The objective of a hard-margin machine is 1 / (2 M^2), so that M / M* = sqrt(F* / F) >= sqrt(lower / upper). With a
    soft margin the objective counts slack too, and the ratio compares objectives.

    Parameters
    ----------
    lower, upper : float
        Bounds of the game's value and of the objective on the features.
    """
    return float(np.sqrt(np.clip(lower / upper, 0.0, 1.0))) if upper > 0.0 else 0.0


def normalised_margins(scores: np.ndarray, signs: np.ndarray, coef: np.ndarray) -> np.ndarray:
    """y f(x) / |w| of every row: what theorem 4.3 speaks of.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        w.phi(x), without an intercept, which the theorem has not.
    signs : ndarray of shape (n,)
    coef : ndarray of shape (m,)
        w on features sqrt(lambda_t) phi_t, lambda a probability: |f| / |w| is then at most 1.
    """
    return signs * scores / max(float(np.linalg.norm(coef)), np.finfo(np.float64).tiny)


def kernel_complexity(frequency_norm: float, row_norm: float, n_rows: int, *, mass: float = 1.0) -> float:
    """The Rademacher complexity of all machines of norm 1 with any translation-invariant kernel: theorem 4.3.

    (3 R_w R_x + 1) sqrt(mass / n). The sine gives R_w R_x, the cosine less 1 twice that (its supremum is over a
    modulus), and the constant 1, which the paper drops and a contraction needs gone, gives the last term.

    Parameters
    ----------
    frequency_norm : float
        R_w, no frequency is longer; fixed before the rows are seen (`max_norm`).
    row_norm : float
        R_x, the largest distance of a row from any fixed point.
    n_rows : int
    mass : float
        R_lambda, of the dual measure; 1 for weights that sum to 1.
    """
    return float((3.0 * frequency_norm * row_norm + 1.0) * np.sqrt(mass / n_rows))


@dataclass(frozen=True)
class GeneralizationBound:
    """A bound on the probability of error, and the margin that gives it.

    Parameters
    ----------
    value : float
        Vacuous from 1 (from 1/2, a coin does as well).
    theta : float
    """

    value: float
    theta: float

    @property
    def is_vacuous(self) -> bool:
        return self.value >= 0.5


def generalization_bound(margins: np.ndarray, complexity: float, *, failure: float = 0.05) -> GeneralizationBound:
    """Theorem 4.3: with probability 1 - failure, error <= the least over theta of a share of margins and a complexity.

    Uniform over theta in (0, 1] (Koltchinskii & Panchenko 2002; Mohri, Rostamizadeh & Talwalkar 2018, theorem 5.9):
    the share of margins below theta, plus 4 complexity / theta, sqrt(log log2(2 / theta) / n) and
    sqrt(log(2 / failure) / (2 n)).

    Parameters
    ----------
    margins : ndarray of shape (n,)
        Of `normalised_margins`, on the rows that the model was fitted to.
    complexity : float
        Of `kernel_complexity`.
    failure : float

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.selection.margins import generalization_bound, kernel_complexity
    >>> bound = generalization_bound(np.full(1_000_000, 0.5), kernel_complexity(5.0, 2.0, 1_000_000))
    >>> bound.is_vacuous, round(bound.value, 2)
    (False, 0.25)
    """
    n = len(margins)
    ordered = np.sort(margins)
    # between two margins the share is constant and the rest falls with theta: the minimum is at a margin, or at 1
    theta = np.unique(np.append(ordered[(ordered > 0.0) & (ordered < 1.0)], 1.0))
    share = np.searchsorted(ordered, theta, side="left") / n
    rest = 4.0 * complexity / theta + np.sqrt(np.log(np.log2(2.0 / theta)).clip(0.0) / n)
    values = share + rest + np.sqrt(np.log(2.0 / failure) / (2.0 * n))
    best = int(values.argmin())
    return GeneralizationBound(float(values[best]), float(theta[best]))


def potential_accuracy(n_rows: int, n_candidates: int, *, failure: float = 0.05) -> float:
    """How far normalised potentials of fixed candidates on n rows can be off: theorem 4.4 for K candidates.

    sqrt(8 log(2 K / failure) / n), the inverse of `dkl.selection.peak_search.sample_size`.

    Parameters
    ----------
    n_rows, n_candidates : int
    failure : float
    """
    return float(np.sqrt(8.0 * np.log(2.0 * n_candidates / failure) / n_rows))


def uniform_sample_size(
    n_columns: int, frequency_norm: float, row_norm: float, *, accuracy: float = 0.05, failure: float = 0.05
) -> int:
    """Rows that suffice for the potentials of all frequencies up to a length at once: theorem 4.4.

    The least n with n >= 32 (d log(1 + 16 R_x R_w / eps) + log(2 / failure)) / (eps - 2 / n)^2: a net of radius
    eps / (8 R_x) in the ball of frequencies, where the error of v / n^2 is 4 R_x-Lipschitz, takes half of eps; its
    points the other half, less the bias of at most 1 / n. Of use in few columns only: some 1e8 rows for 784.

    Parameters
    ----------
    n_columns : int
    frequency_norm, row_norm : float
    accuracy, failure : float
    """
    net = n_columns * np.log1p(16.0 * row_norm * frequency_norm / accuracy) + np.log(2.0 / failure)

    def lacking(n: float) -> float:
        return 32.0 * net / (accuracy - 2.0 / n) ** 2 - n

    least = 2.0 / accuracy * (1.0 + 1e-9)
    most = max(4.0 / accuracy, 128.0 * net / accuracy**2) + 1.0
    return int(np.ceil(brentq(lacking, least + 1e-6 * least, most)))

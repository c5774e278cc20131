"""Bounds of theorems 4.1 to 4.4 of Bullins, Zhang & Zhang 2018 for a game or a fitted model, in forms that hold.

The printed forms have slips, each corrected here and tested by simulation. 4.1: the gradient's bound is (1 + C n)
sqrt(n), not (1 + 2 C) sqrt(n). 4.2: margins compare by the square root, for hard margins. 4.3: the cosine's constant
was lost, and theta is free in the uniform form only. 4.4: a squared modulus of a sample is biased, and dual weights
must not depend on the sampled rows. 4.5 has no constants: there is nothing to compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from dkl.bounds.certificate import Bound, check_eps

_PAPER = "Bullins et al. 2018"
_SAMPLE = "potentials of dual weights that do not depend on the sampled rows, each at most 1 in size"


def guaranteed_regret(
    C: float,
    n_rows: float,
    rounds: int,
    *,
    loss: Literal["hinge", "squared_hinge"] = "hinge",
) -> Bound:
    """Theorem 4.1: how far max F(., lambda) can lie above the mean of F(alpha_t, lambda_t), before a round is played.

    F(alpha, lambda) is the dual objective of a machine with dual weights alpha (n,) on the kernel of the density lambda
    of frequencies. Round t of the game plays the weights alpha_t, answered by lambda_t, a density at the highest peak;
    lambda is the mean of the answers. The bound is the regret of the player of the weights.

    With the steps of the theorem and exact projections. Hinge: 3 D G / (2 sqrt(T)) with
    D = C sqrt(n), G = (1 + C n) sqrt(n), steps D / (G sqrt(t)) (Zinkevich 2003); as printed 3 (C + 2 C^2) n /
    (4 sqrt(T)). Squared hinge: F is 1/C'-strongly concave, C' = 2 C, and C' G^2 (1 + log T) / (2 T) with steps C' / t
    (Hazan, Agarwal & Kale 2007), where alpha <= C' sqrt(n) bounds G by (1 + C' n^(3/2) + sqrt(n)) sqrt(n); the paper
    has no constant for it.

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
    Bound
        In the units of the objective; of the hinge vacuous from C n, which the objective never exceeds.

    Raises
    ------
    ValueError
        If a number is not positive.

    Examples
    --------
    >>> from dkl.bounds.margins import guaranteed_regret
    >>> bound = guaranteed_regret(1.0, 100, rounds=10_000)
    >>> round(bound.value), bound.is_vacuous
    (152, True)
    """
    if not (C > 0.0 and n_rows > 0.0 and rounds > 0):
        raise ValueError(f"C={C!r}, n_rows={n_rows!r} and rounds={rounds!r} must be positive")
    # D is C sqrt(n), the length of the box of dual weights, and G = (1 + C n) sqrt(n) the steepest gradient in it.
    root, is_hinge = np.sqrt(n_rows), loss == "hinge"
    if is_hinge:
        steepest = (1.0 + C * n_rows) * root
        value = 1.5 * C * root * steepest / np.sqrt(rounds)
    else:
        # alpha is at most C' sqrt(n), C' = 2 C: the last term is the gradient alpha / C' of the loss's conjugate.
        steepest = (1.0 + 2.0 * C * n_rows * root + root) * root
        value = C * steepest**2 * (1.0 + np.log(rounds)) / rounds
    return Bound(
        theorem=f"{_PAPER}, theorem 4.1 (corrected)",
        value=float(value),
        terms={"steepest gradient": float(steepest), "C": C, "n": n_rows, "T": rounds},
        probability=1.0,
        vacuous_from=C * n_rows if is_hinge else None,
        covers="the regret of the dual weights after T rounds with the theorem's steps, all rounds weighed alike, for "
        "two classes",
        excludes="other steps (`played_value`), alternating projections, and answers that are not the highest peak",
    )


def played_regret(
    steps: Sequence[float], gradients: Sequence[float], diameter: float, weights: Sequence[float] | None = None
) -> float:
    """The regret of a game that was played, for any steps and weights, from the gradients that occurred.

    (D^2 W + sum p eta |g|^2) / (2 sum p) for rounds of weight p in lambda and in the mean of F(alpha_t, lambda_t). W
    sums up the increases of p / eta (T for the weights t eta_t of `dkl.methods.game.driver`): large gradients of the
    first rounds then cost little, where `guaranteed_regret` takes them for all rounds.

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

    Examples
    --------
    >>> from dkl.bounds import played_regret
    >>> played_regret(steps=[1.0, 0.5], gradients=[1.0, 1.0], diameter=1.0)
    0.875
    """
    # Zinkevich's analysis with weights: each step brings alpha closer to the best one, or the gradient was short.
    eta = np.asarray(steps, dtype=np.float64)
    p = np.ones_like(eta) if weights is None else np.asarray(weights, dtype=np.float64)
    # Zinkevich's sum telescopes where p / eta never falls; where it does, the fall costs nothing.
    increases = np.diff(p / eta, prepend=0.0).clip(0.0).sum()
    return float((diameter**2 * increases + (p * eta) @ np.asarray(gradients, dtype=np.float64)) / (2.0 * p.sum()))


def played_value(
    responses: Sequence[float],
    regret: float,
    *,
    weights: Sequence[float] | None = None,
    largest: float | None = None,
) -> Bound:
    """Theorem 4.1 after the rounds: the objective on the features found, max F(., lambda), from above.

    Parameters
    ----------
    responses : sequence of float
        F(alpha_t, lambda_t) of each round.
    regret : float
        Of `played_regret`.
    weights : sequence of float or None
        p_t, of each round in lambda; None weighs all alike.
    largest : float or None
        What the objective never exceeds: C n for the hinge.

    Returns
    -------
    Bound

    Examples
    --------
    >>> from dkl.bounds import played_value
    >>> played_value(responses=[1.0, 2.0], regret=0.5).value
    2.0
    """
    # max F(., lambda) is at most the mean of the responses F(alpha_t, lambda_t) plus the regret, by the definition of
    # regret.
    response = float(np.average(responses, weights=weights))
    return Bound(
        theorem=f"{_PAPER}, theorem 4.1 (corrected, as played)",
        value=response + regret,
        terms={"mean response": response, "regret": regret, "T": len(responses)},
        probability=1.0,
        vacuous_from=largest,
        covers="the objective of the machine on the weighed features of all rounds, for these rows; no search needs to "
        "have found a highest peak",
        excludes="alternating projections, features dropped afterwards, other rows",
    )


def margin_shortfall(lower: float, upper: float, *, certified: bool = True) -> Bound:
    """Corollary 4.2: by how much the margin on the features found falls short of the largest one, 1 - M / M*.

    The objective of a hard-margin machine is 1 / (2 M^2), so that M / M* = sqrt(F* / F) >= sqrt(lower / upper). The
    corollary as printed takes the regret itself for the shortfall.

    Parameters
    ----------
    lower, upper : float
        Bounds of the game's value and of the objective on the features.
    certified : bool
        Whether `lower` is one: a search in R^d bounds potentials from below only, which makes this an estimate.

    Returns
    -------
    Bound
        Vacuous from 1.

    Examples
    --------
    >>> from dkl.bounds.margins import margin_shortfall
    >>> margin_shortfall(0.81, 1.0).value.__round__(3)
    0.1
    """
    # Margins are the roots of inverse objectives, M = 1 / sqrt(2 F).
    ratio = float(np.sqrt(np.clip(lower / upper, 0.0, 1.0))) if upper > 0.0 else 0.0
    return Bound(
        theorem=f"{_PAPER}, corollary 4.2 (corrected{'' if certified else ', an estimate'})",
        value=1.0 - ratio,
        terms={"M / M*": ratio, "lower": lower, "upper": upper},
        probability=1.0,
        vacuous_from=1.0,
        covers="hard margins; with a soft margin the root of a ratio of objectives, which count slack too",
        excludes="other rows"
        if certified
        else "peaks that the search has missed: the value may be too low; other rows",
    )


def normalised_margins(scores: np.ndarray, signs: np.ndarray, coef: np.ndarray) -> np.ndarray:
    """y f(x) / |w| of every row: what theorem 4.3 speaks of.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        w.phi(x), without an intercept, which the theorem has not.
    signs : ndarray of shape (n,)
    coef : ndarray of shape (m,)
        w on features sqrt(lambda_t) phi_t, lambda a probability: |f| / |w| is then at most 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.bounds import normalised_margins
    >>> normalised_margins(np.array([2.0, -1.0]), np.array([1.0, 1.0]), np.array([3.0, 4.0]))
    array([ 0.4, -0.2])
    """
    return signs * scores / max(float(np.linalg.norm(coef)), np.finfo(np.float64).tiny)


def kernel_complexity(frequency_norm: float, row_norm: float, n_rows: float, *, mass: float = 1.0) -> float:
    """The Rademacher complexity of all machines of norm 1 with any translation-invariant kernel: theorem 4.3.

    (3 R_w R_x + 1) sqrt(mass / n). The sine gives R_w R_x, the cosine less 1 twice that (its supremum is over a
    modulus), and the constant 1, which the paper drops and a contraction needs gone, gives the last term.

    Parameters
    ----------
    frequency_norm : float
        R_w, no frequency is longer; fixed before the rows are seen (`max_norm`).
    row_norm : float
        R_x, the largest distance of a row from any fixed point.
    n_rows : float
    mass : float
        R_lambda, of the dual measure; 1 for weights that sum to 1.

    Examples
    --------
    >>> from dkl.bounds import kernel_complexity
    >>> kernel_complexity(frequency_norm=1.0, row_norm=1.0, n_rows=1_600)
    0.1
    """
    # The contraction lemma takes a sine of an angle for the angle itself: a Lipschitz function that is 0 at 0.
    return float((3.0 * frequency_norm * row_norm + 1.0) * np.sqrt(mass / n_rows))


def error_bound(
    margins: np.ndarray,
    frequency_norm: float,
    row_norm: float,
    *,
    mass: float = 1.0,
    eps: float = 0.05,
) -> Bound:
    """Theorem 4.3: the probability of error, by the margins on the rows that a model was fitted to.

    The least over theta in (0, 1] of the share of margins below theta, plus ``4 R / theta`` with R of
    `kernel_complexity`, ``sqrt(ln log2(2 / theta) / n)`` and ``sqrt(ln(2/eps) / (2 n))``: the form that holds for all
    theta at once (Koltchinskii & Panchenko 2002; Mohri, Rostamizadeh & Talwalkar 2018, theorem 5.9). The printed one is
    that of one theta, ``share + 2 R / theta + 3 sqrt(ln(2/eps) / (2 n))`` with its own R, minimised all the same.

    Parameters
    ----------
    margins : ndarray of shape (n,)
        Of `normalised_margins`.
    frequency_norm, row_norm, mass
        As of `kernel_complexity`.
    eps : float
        The bound fails with this probability at most.

    Returns
    -------
    Bound
        Vacuous from 1/2, as a coin does as well.

    Raises
    ------
    ValueError
        If `eps` is no probability.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.bounds.margins import error_bound
    >>> bound = error_bound(np.full(1_000_000, 0.5), frequency_norm=5.0, row_norm=2.0)
    >>> bound.is_vacuous, round(bound.value, 2)
    (False, 0.25)
    """
    check_eps(eps)
    n = len(margins)
    complexity = kernel_complexity(frequency_norm, row_norm, n, mass=mass)
    ordered = np.sort(margins)
    # Between two margins the share is constant and the rest falls with theta, so that the minimum is at a margin or at
    # 1.
    theta = np.unique(np.append(ordered[(ordered > 0.0) & (ordered < 1.0)], 1.0))
    share = np.searchsorted(ordered, theta, side="left") / n
    # For all theta at once the complexity counts twice, and the choice of theta costs a double logarithm.
    of_complexity, uniform = 4.0 * complexity / theta, np.sqrt(np.log(np.log2(2.0 / theta)).clip(0.0) / n)
    confidence = np.sqrt(np.log(2.0 / eps) / (2.0 * n))
    values = share + of_complexity + uniform + confidence
    best = int(values.argmin())
    return Bound(
        theorem=f"{_PAPER}, theorem 4.3 (corrected)",
        value=float(values[best]),
        terms={
            "theta": float(theta[best]),
            "share below theta": float(share[best]),
            "complexity term": float(of_complexity[best]),
            "uniform in theta": float(uniform[best]),
            "confidence": float(confidence),
            "R_w": frequency_norm,
            "R_x": row_norm,
            "n": n,
        },
        probability=1.0 - eps,
        vacuous_from=0.5,
        covers="the probability of error of any machine without intercept on any frequencies no longer than R_w, two "
        "classes, rows drawn independently from one law and at most R_x from a fixed point",
        excludes="intercepts; R_w, R_x or a scaling chosen on the same rows; rows weighted by class",
    )


def potential_deviation(n_rows: float, n_candidates: int, *, eps: float = 0.05) -> Bound:
    """Theorem 4.4 for K candidates: how far normalised potentials of fixed frequencies on n rows can be off.

    sqrt(8 ln(2 K / eps) / n), the inverse of `dkl.methods.frequency_search.peak_search.sample_size`.

    Parameters
    ----------
    n_rows : float
    n_candidates : int
    eps : float
        The bound fails with this probability at most.

    Returns
    -------
    Bound
        Vacuous from 1, the most that a potential is.

    Raises
    ------
    ValueError
        If `eps` is no probability.

    Examples
    --------
    >>> from dkl.bounds import potential_deviation
    >>> round(potential_deviation(1e6, n_candidates=1_000).value, 4)
    0.0092
    """
    check_eps(eps)
    return Bound(
        theorem=f"{_PAPER}, theorem 4.4 (corrected, for fixed frequencies)",
        value=float(np.sqrt(8.0 * np.log(2.0 * n_candidates / eps) / n_rows)),
        terms={"K": n_candidates, "n": n_rows},
        probability=1.0 - eps,
        vacuous_from=1.0,
        covers=f"{_SAMPLE}, over pairs of different rows, at frequencies fixed before",
        excludes="frequencies that an ascent on the same rows has found (`uniform_sample_size`)",
    )


def uniform_sample_size(
    n_columns: int,
    frequency_norm: float,
    row_norm: float,
    *,
    accuracy: float = 0.05,
    eps: float = 0.05,
) -> Bound:
    """Theorem 4.4: rows that suffice for the potentials of all frequencies up to a length at once.

    The least n with n >= 32 (d ln(1 + 16 R_x R_w / a) + ln(2 / eps)) / (a - 2 / n)^2, a the accuracy: a net of radius
    a / (8 R_x) in the ball of frequencies, where the error of v / n^2 is 4 R_x-Lipschitz, takes half of a; its points
    the other half, less the bias of at most 1 / n. As printed 8 (R_x R_w)^2 (d ln(2 R_x R_w / a) + ln(1 / eps)) / a^2.
    Of use in few columns only: some 1e8 rows for 784.

    Parameters
    ----------
    n_columns : int
    frequency_norm, row_norm : float
        R_w and R_x.
    accuracy : float
        Of v / n^2.
    eps : float
        So many rows fail with this probability at most.

    Returns
    -------
    Bound
        A number of rows.

    Raises
    ------
    ValueError
        If `eps` is no probability.

    Examples
    --------
    >>> from dkl.bounds.margins import uniform_sample_size
    >>> uniform_sample_size(784, 3.0, 9.0).value > 5e7
    True
    """
    check_eps(eps)
    # R_x R_w bounds every angle w.x: how much potentials can change with w follows from it.
    product = row_norm * frequency_norm
    net = n_columns * np.log1p(16.0 * product / accuracy) + np.log(2.0 / eps)
    # The bias of 2 / n takes all of the accuracy at n = 2 / a and at most half of it at 4 / a: the root lies between.
    least = 2.0 / accuracy * (1.0 + 2e-6)
    most = max(4.0 / accuracy, 128.0 * net / accuracy**2) + 1.0
    needed = brentq(lambda n: 32.0 * net / (accuracy - 2.0 / n) ** 2 - n, least, most)
    return Bound(
        theorem=f"{_PAPER}, theorem 4.4 (corrected)",
        value=float(np.ceil(needed)),
        terms={"ln of the net / eps": float(net), "R_w": frequency_norm, "R_x": row_norm, "accuracy": accuracy},
        probability=1.0 - eps,
        vacuous_from=None,
        covers=f"{_SAMPLE}, at all frequencies no longer than R_w, rows at most R_x from a fixed point",
        excludes="dual weights of the sampled rows themselves; the height of a peak that an ascent has missed",
    )

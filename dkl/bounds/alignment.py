"""Bounds on the population's alignment, and on machines on the weighted features (Sinha & Duchi 2016)."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import lambertw

from dkl.bounds.certificate import Bound, check_eps

_LAWS = (
    "rows drawn independently from one law, label similarities in [-1, 1] (1 within a class and -1 across), features "
    "of size at most feature_norm"
)
_CHOICES = (
    "a rho, bandwidth or scaling chosen on the same rows; centred labels and targets that are numbers; rows weighted "
    "by class; features drawn from the weights"
)


def alignment_deviation(
    n_rows: float,
    rho: float,
    *,
    k: float = 2.0,
    feature_norm: float = 1.0,
    alignment: float | None = None,
    eps: float = 0.05,
) -> Bound:
    """Lemma 1: how far the alignment of any weights in the divergence ball is from its expectation.

    ``(1 + rho)^(1/k) sqrt(a / floor(n/2))`` with ``sqrt(a) exp(-(a - 1)/2) = eps``, times the squared feature norm.
    As printed it is ``4 sqrt((1 + rho) ln(sqrt(2)/eps) / n)``: the paper takes the variance proxy of bounded
    differences, twice that of a U-statistic, k = 2 for every k, and a multiplier that is not the best one.

    Parameters
    ----------
    n_rows : float
        n, at least 2.
    rho : float
        Radius of the ball, chosen before the rows were seen.
    k : float
        Order of the divergence, at least 2.
    feature_norm : float
        The largest |phi(x)| of a feature (of a cosine-sine pair: 1).
    alignment : float or None
        T^ of the learned weights: from that on the bound is vacuous, since the expected alignment may be 0.
    eps : float
        The bound fails with this probability at most.

    Returns
    -------
    Bound
        On sup |T^(Q) - T(Q)|, T the mean over pairs of different rows of similarity times kernel; twice the deviation
        of the loss of `dkl.bounds.pair_loss`.

    Raises
    ------
    ValueError
        If a number is out of its range.

    Examples
    --------
    >>> from dkl.bounds.alignment import alignment_deviation
    >>> round(alignment_deviation(1_000_000, 10.0).value, 4)
    0.0142
    """
    _check(n_rows, rho, k, feature_norm, eps)
    # sqrt(a) exp(-(a - 1) / 2) = eps is a exp(-a) = eps^2 / e, of which a is the root above 1.
    a = -float(lambertw(-(eps**2) / math.e, k=-1).real)
    # A mean over pairs of rows is one over floor(n / 2) independent pairs, averaged over the ways to pair rows.
    deviation = float((1.0 + rho) ** (1.0 / k) * math.sqrt(a / math.floor(n_rows / 2.0)))
    value = feature_norm**2 * deviation
    # An expected alignment may be as low as 0, which a deviation of the learned alignment's own size does not rule out.
    of_weights = {} if alignment is None else {"alignment": alignment}
    return Bound(
        theorem="Sinha & Duchi 2016, lemma 1 (tightened)",
        value=value,
        terms={**of_weights, "rho": rho, "k": k, "n": n_rows, "feature_norm": feature_norm},
        probability=1.0 - eps,
        vacuous_from=feature_norm**2 if alignment is None else alignment,
        covers=f"the alignment of all weights in the ball at once; {_LAWS}",
        excludes=f"{_CHOICES}; pairs of a row with itself, which move an alignment by 1/n",
    )


def candidate_deviation(
    n_candidates: float,
    rho: float,
    *,
    k: float = 2.0,
    feature_norm: float = 1.0,
    eps: float = 0.05,
) -> Bound:
    """Lemma 2: how far the best alignment on D drawn candidates is from the best on their law.

    ``4 c sqrt(ln(2 D) / D) + sqrt(8 (1 + rho)^(2/k) ln(2/eps) / D)``, c = 2 (1 + rho) / (sqrt(1 + rho) - 1), times the
    squared feature norm. The printed form has k = 2 throughout and grows without bound as rho goes to 0, where the two
    hardly differ: the first term is never above ``sqrt((1 + rho)^(2/k) - 1)``, by the variance of the weights.

    Parameters
    ----------
    n_candidates : float
        D.
    rho, k, feature_norm
        As of `alignment_deviation`.
    eps : float
        The bound fails with this probability at most, over the draw of the candidates.

    Returns
    -------
    Bound

    Raises
    ------
    ValueError
        If a number is out of its range.

    Examples
    --------
    >>> from dkl.bounds import candidate_deviation
    >>> few, many = (candidate_deviation(n, rho=1.0) for n in (1e4, 1e6))
    >>> many.value < few.value
    True
    """
    _check(2.0, rho, k, feature_norm, eps)
    if not n_candidates >= 1:
        raise ValueError(f"n_candidates is {n_candidates!r}; there is at least one")
    # The two terms of the lemma for features of size 1: the mean over draws of the candidates, and how far one draw is
    # off.
    spread = math.sqrt(1.0 + rho) - 1.0
    # (1 + rho)^(2/k) is the largest mean square of the densities in the ball, so that its excess over 1 bounds the
    # variance of any of them, and with it the first term.
    width = (1.0 + rho) ** (2.0 / k)
    mean = math.sqrt(width - 1.0)
    if spread > 0.0:
        mean = min(8.0 * (1.0 + rho) / spread * math.sqrt(math.log(2.0 * n_candidates) / n_candidates), mean)
    draw = math.sqrt(8.0 * width * math.log(2.0 / eps) / n_candidates)
    return Bound(
        theorem="Sinha & Duchi 2016, lemma 2 (corrected)",
        value=feature_norm**2 * (mean + draw),
        terms={"mean": feature_norm**2 * mean, "draw": feature_norm**2 * draw, "rho": rho, "D": n_candidates},
        probability=1.0 - eps,
        vacuous_from=feature_norm**2,
        covers="the largest alignment with these rows in the ball, for candidates drawn independently from the family",
        excludes="orthogonal, structured or repeated candidates; other rows",
    )


def alignment_gap(
    n_rows: float,
    n_candidates: float,
    rho: float,
    *,
    k: float = 2.0,
    feature_norm: float = 1.0,
    eps: float = 0.05,
) -> Bound:
    """Theorem 1: how far the learned kernel's expected alignment is below the best one in the ball, of all densities.

    Lemma 2 once and lemma 1 twice, each with a third of `eps`; see there for the corrections.

    Parameters
    ----------
    n_rows, n_candidates, rho, k, feature_norm
        As of `alignment_deviation` and `candidate_deviation`.
    eps : float
        The bound fails with this probability at most (3 delta of the paper), over rows and candidates.

    Returns
    -------
    Bound
        Vacuous from the squared feature norm, the most that a kernel aligns.

    Raises
    ------
    ValueError
        If a number is out of its range.

    Examples
    --------
    >>> from dkl.bounds.alignment import alignment_gap
    >>> alignment_gap(32_561, 20_000, 240.0).is_vacuous
    True
    """
    # Three events may fail: lemma 1 for the learned weights, lemma 1 for the best ones, and lemma 2.
    part = eps / 3.0
    candidates = candidate_deviation(n_candidates, rho, k=k, feature_norm=feature_norm, eps=part)
    rows = alignment_deviation(n_rows, rho, k=k, feature_norm=feature_norm, eps=part)
    # Once from the empirical to the expected alignment of the learned weights, once back for the best ones.
    both = 2.0 * rows.value
    return Bound(
        theorem="Sinha & Duchi 2016, theorem 1 (corrected)",
        value=candidates.value + both,
        terms={
            "candidates, mean": candidates.terms["mean"],
            "candidates, draw": candidates.terms["draw"],
            "rows": both,
            "rho": rho,
            "D": n_candidates,
            "n": n_rows,
        },
        probability=1.0 - eps,
        vacuous_from=feature_norm**2,
        covers=f"the distance of the learned weights' expected alignment from the best in the ball; {_LAWS}; "
        "candidates drawn independently from the family",
        excludes=f"{_CHOICES}; the error of a machine on the features",
    )


def rademacher_bound(
    n_rows: float,
    rho: float,
    *,
    norm: float = 1.0,
    k: float = 2.0,
    feature_norm: float = 1.0,
) -> Bound:
    """Lemma 3: the Rademacher complexity of machines on the features, whatever the weights in the ball.

    ``3^(1/4) (1 + rho)^(1/(2k)) B / sqrt(n)`` times the feature norm; the printed form is ``B sqrt(2 (1 + rho) / n)``,
    which rounds ``(3 (1 + rho))^(1/4)`` up.

    Parameters
    ----------
    n_rows, rho, k, feature_norm
        As of `alignment_deviation`.
    norm : float
        B, no machine's coefficients on the features ``sqrt(q) phi`` are longer.

    Returns
    -------
    Bound
        Certain, for every sample.

    Raises
    ------
    ValueError
        If a number is out of its range.

    Examples
    --------
    >>> from dkl.bounds import rademacher_bound
    >>> round(rademacher_bound(10_000, rho=0.0).value, 4)
    0.0132
    """
    _check(n_rows, rho, k, feature_norm, 0.5)
    if not norm > 0.0:
        raise ValueError(f"norm is a length of coefficients, positive, got {norm!r}")
    # By Jensen's and Khintchine's inequalities, from the fourth moment of a sum of n signs, at most 3 n^2; the ball
    # turns it into a power of 1 + rho.
    share = 3.0**0.25 * (1.0 + rho) ** (0.5 / k)
    return Bound(
        theorem="Sinha & Duchi 2016, lemma 3 (tightened)",
        value=share * norm * feature_norm / math.sqrt(n_rows),
        terms={"rho": rho, "B": norm, "n": n_rows, "feature_norm": feature_norm},
        probability=1.0,
        vacuous_from=norm * feature_norm,
        covers="the empirical Rademacher complexity of the machines of length at most B on the candidates, any weights "
        "in the ball, without intercept",
        excludes="machines of which B or rho was chosen on the rows; intercepts",
    )


def risk_bound(
    margins: np.ndarray,
    rho: float,
    *,
    norm: float,
    nu: float = 1.0,
    k: float = 2.0,
    feature_norm: float = 1.0,
    eps: float = 0.05,
) -> Bound:
    """Theorem 2: the probability of error of a machine on the features, by its margins on the rows it was fitted to.

    ``mean min(1, [1 - y h / nu]_+) + (2 / nu) R + sqrt(ln(1/eps) / (2 n))`` with R of lemma 3, which is the same for
    every sample: the printed form has ``3 sqrt(ln(2/eps) / (2 n))``, as for a complexity that depends on it.

    Parameters
    ----------
    margins : ndarray of shape (n,)
        y h(x), y in {-1, 1}, h without intercept.
    rho, norm, k, feature_norm
        As of `rademacher_bound`; chosen before the rows were seen.
    nu : float
        The margin that is asked for; chosen before the rows were seen.
    eps : float
        The bound fails with this probability at most.

    Returns
    -------
    Bound
        Vacuous from 1/2, as a coin does as well.

    Raises
    ------
    ValueError
        If a number is out of its range.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.bounds.alignment import risk_bound
    >>> round(risk_bound(np.full(100_000, 1.0), 10.0, norm=5.0).value, 3)
    0.08
    """
    check_eps(eps)
    if not nu > 0.0:
        raise ValueError(f"nu is a margin, positive, got {nu!r}")
    n = len(margins)
    # The machines of length B are one class for all weights in the ball: the learned weights cost nothing extra.
    complexity = rademacher_bound(n, rho, norm=norm, k=k, feature_norm=feature_norm).value
    # The ramp loss, which is at least the 0-1 loss and 1/nu-Lipschitz: hence the complexity over nu.
    ramp = float(np.clip(1.0 - np.asarray(margins) / nu, 0.0, 1.0).mean())
    # One changed row moves the largest gap by at most 1/n (McDiarmid).
    confidence = math.sqrt(-math.log(eps) / (2 * n))
    return Bound(
        theorem="Sinha & Duchi 2016, theorem 2 (tightened)",
        value=ramp + 2.0 * complexity / nu + confidence,
        terms={
            "margin loss": ramp,
            "complexity term": 2.0 * complexity / nu,
            "confidence": confidence,
            "nu": nu,
            "B": norm,
            "rho": rho,
            "n": n,
        },
        probability=1.0 - eps,
        vacuous_from=0.5,
        covers="the probability of error of every machine of length at most B on the candidates, any weights in the "
        "ball, two classes, rows drawn independently from one law",
        excludes="B, nu, rho or a bandwidth chosen on the same rows; intercepts; features drawn from the weights",
    )


def _check(n_rows: float, rho: float, k: float, feature_norm: float, eps: float) -> None:
    """Raise ValueError where the numbers of a theorem are out of their ranges."""
    check_eps(eps)
    if not (n_rows >= 2.0 and rho >= 0.0 and k >= 2.0 and feature_norm > 0.0):
        raise ValueError(
            f"n_rows={n_rows!r} must be at least 2, rho={rho!r} at least 0, k={k!r} at least 2 and "
            f"feature_norm={feature_norm!r} positive"
        )

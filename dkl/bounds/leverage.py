"""How many features stand for a kernel, and at which rates machines on them learn (Bach 2017; Sun et al. 2018)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from dkl.bounds.certificate import Bound, check_eps, scope
from dkl.plain_text import Printed

Case = Literal["polynomial", "sub-exponential", "separated", "plain"]


def coherence_ratio(scores: np.ndarray) -> float:
    """M max(r) / sum(r): by how much the largest leverage score exceeds what assumption 2 of Sun et al. 2018 allows.

    1 for an optimised law of the features, whose scores are all alike. Draws in proportion to the scores have it
    whatever the scores are; random draws need this multiple of the features that an optimised law needs.

    Parameters
    ----------
    scores : ndarray of shape (M,)

    Returns
    -------
    float
        At least 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.bounds import coherence_ratio
    >>> coherence_ratio(np.array([0.2, 0.2, 0.2])), round(coherence_ratio(np.array([0.8, 0.1, 0.1])), 3)
    (1.0, 2.4)
    """
    return float(len(scores) * scores.max() / scores.sum())


def feature_count(
    degrees_of_freedom: float, *, coherence: float = 1.0, eps: float = 0.05, n_candidates: float | None = None
) -> Bound:
    """Draws after which features stand for the whole pool, ``N = ceil(5 c d(mu) ln(16 d(mu) / eps))``.

    Then every function f = Phi^T a, |a| <= 1, has coefficients b on the drawn features (weighted, divided by sqrt(N))
    with |b|^2 <= 4 and a mean squared error of at most 4 mu over the rows.

    Parameters
    ----------
    degrees_of_freedom : float
        d(mu), the sum of the leverage scores.
    coherence : float
        c, 1 for draws in proportion to the scores, `coherence_ratio` for random ones.
    eps : float
        The draws fail with this probability at most.
    n_candidates : float or None
        M, the size of the pool: at most M draws are needed, since that many cost as much as the whole pool.

    Returns
    -------
    Bound

    Raises
    ------
    ValueError
        If a number is out of its range.

    References
    ----------
    Bach 2017, "On the equivalence between kernel quadrature rules and random feature expansions", proposition 1, which
    Sun, Gilbert & Tewari 2018 build on.

    Examples
    --------
    >>> from dkl.bounds.leverage import feature_count
    >>> int(feature_count(10.0).value)
    404
    """
    if not (math.isfinite(degrees_of_freedom) and degrees_of_freedom > 0.0):
        raise ValueError(f"degrees_of_freedom is {degrees_of_freedom!r}; a sum of scores is positive and finite")
    if not coherence >= 1.0 - 1e-9:
        raise ValueError(f"coherence is {coherence!r}; the largest score is at least the mean one, so it is at least 1")
    check_eps(eps)
    # Where d(mu) is tiny the logarithm would fall below 1, and even below 0.
    logarithm = max(1.0, math.log(16.0 * degrees_of_freedom / eps))
    return Bound(
        theorem="Bach 2017, proposition 1",
        value=float(math.ceil(5.0 * coherence * degrees_of_freedom * logarithm)),
        terms={"d(mu)": degrees_of_freedom, "coherence": coherence, "ln(16 d / eps)": logarithm},
        probability=1.0 - eps,
        vacuous_from=n_candidates,
        covers="draws with replacement and weighted amplitudes: over the rows that the scores were computed on, the "
        "pool's unit ball is met within a mean squared error of 4 mu, with coefficients no longer than 2",
        excludes="amplitudes left alike, scores that are approximations, the distance of the pool's kernel from the "
        "family's own, other rows, and the accuracy of a machine on the features",
    )


@dataclass(frozen=True)
class LearningRate(Printed):
    """The parameters that a theorem gives a random-feature SVM for n rows, and the rate at which its excess risk falls.

    Constants that the theorems leave open are taken as 1: ratios between two n mean something, the numbers do not.

    Parameters
    ----------
    theorem : str
    n_rows : float
    lam : float
        The ridge of the machine.
    n_features : float
        Draws of features, sorted out by logarithms as printed.
    excess_risk : float
        The rate, with probability 1 - 4 eps.
    holds_from : float
        Rows from which on the theorem speaks.
    covers, excludes : str

    Examples
    --------
    >>> from dkl.bounds import learning_rate
    >>> small, large = (learning_rate(n, decay=2.0) for n in (1e4, 1e6))
    >>> large.excess_risk < small.excess_risk
    True
    """

    theorem: str
    n_rows: float
    lam: float
    n_features: float
    excess_risk: float
    holds_from: float
    covers: str
    excludes: str

    @property
    def is_vacuous(self) -> bool:
        """Whether the rate says nothing: too few rows, features no fewer than rows, or a risk of 1/2 or more."""
        return self.n_rows < self.holds_from or self.n_features >= self.n_rows or self.excess_risk >= 0.5

    def __repr__(self) -> str:
        said = "; vacuous with constants of 1" if self.is_vacuous else ""
        return "\n".join(
            [
                f"{self.theorem}, n = {self.n_rows:g}{said}",
                f"  with constants of 1: lam {self.lam:.4g}, features {self.n_features:.4g}, excess risk "
                f"{self.excess_risk:.4g}; from n = {self.holds_from:.4g}",
                *scope(self),
            ]
        )


def learning_rate(
    n_rows: float, case: Case = "polynomial", *, decay: float = 2.0, n_columns: int = 1, eps: float = 0.05
) -> LearningRate:
    """The rates of Sun et al. 2018 for n rows: theorem 1 (two spectra), theorem 2, and random draws (appendix E).

    Parameters
    ----------
    n_rows : float
        n, at least 3.
    case : {"polynomial", "sub-exponential", "separated", "plain"}
        "polynomial": eigenvalues below c i^-decay, theorem 1. "sub-exponential": below c exp(-decay i^(1/d)), theorem
        1. "separated": classes a positive distance apart, the Gaussian kernel with bandwidth tau / sqrt(ln n), theorem
        2. "plain": features drawn without reweighting.
    decay : float
        c2 > 1 of a polynomial spectrum, c4 > 0 of a sub-exponential one.
    n_columns : int
        d.
    eps : float
        delta of the theorems, which fail with probability 4 eps.

    Returns
    -------
    LearningRate

    Raises
    ------
    ValueError
        If a number is out of its range.

    Examples
    --------
    >>> from dkl.bounds.leverage import learning_rate
    >>> rate = learning_rate(1e6, "polynomial", decay=4.0)
    >>> round(rate.lam, 6), rate.is_vacuous
    (0.0001, False)
    """
    if case not in get_args(Case):
        raise ValueError(f"case is {case!r}; it must be one of {sorted(get_args(Case))}")
    least = 1.0 if case == "polynomial" else 0.0
    if not (n_rows >= 3.0 and decay > least and n_columns >= 1 and 0.0 < eps < 1.0):
        raise ValueError(
            f"n_rows={n_rows!r} must be at least 3, decay={decay!r} above {least:g}, n_columns={n_columns!r} at least "
            f"1 and eps={eps!r} between 0 and 1"
        )
    n, d, confidence = float(n_rows), n_columns, math.log(1 / eps)
    log_n = math.log(n)
    holds_from = 1.0
    # With constants of 1: the ridge lam, the size of the problem (the degrees of freedom at lam, up to logarithms), the
    # number of features and the rate of the excess risk.
    if case == "polynomial":
        theorem, lam, size = (
            "Sun et al. 2018, theorem 1 (polynomial)",
            n ** (-decay / (2 + decay)),
            n ** (2 / (2 + decay)),
        )
        n_features = 10.0 * size * (math.log(32.0 * size) + confidence)
        excess_risk = lam * (confidence + log_n)
    elif case == "sub-exponential":
        theorem, lam, size = "Sun et al. 2018, theorem 1 (sub-exponential)", 1.0 / n, log_n**d
        n_features = 25.0 * size * (math.log(80.0 * size) + confidence)
        excess_risk = (log_n ** (d + 2) + confidence) / n
        # The theorem speaks from exp(max(c4, 1 / c4) d^2 / 2) rows on, which may be more than a float holds.
        exponent = max(decay, 1.0 / decay) * d**2 / 2.0
        holds_from = math.exp(exponent) if exponent < 700.0 else math.inf
    elif case == "separated":
        theorem, lam, holds_from = "Sun et al. 2018, theorem 2", 1.0 / n, 3.0
        n_features = log_n ** (2 * d) * (math.log(log_n) + confidence)
        excess_risk = log_n ** (2 * d + 1) * (math.log(log_n) + confidence) / n
    else:
        theorem, lam = "Sun et al. 2018, section 3 and appendix E", n ** (-1 / 3)
        n_features, excess_risk = n ** (2 / 3), n ** (-1 / 3)
    # Theorem 1 takes the Bayes rule to lie in the kernel's space; theorem 2 has a margin between the classes instead.
    realizable = case in ("polynomial", "sub-exponential")
    inferred = "; inferred from section 3, since the appendix is not at hand"
    return LearningRate(
        theorem,
        n,
        lam,
        n_features,
        excess_risk,
        holds_from,
        covers="the 0-1 risk above the Bayes risk of an SVM (hinge, no intercept) under Massart's low noise"
        + (", the Bayes rule in the kernel's space" if realizable else ""),
        excludes="constants, which are not given"
        + (inferred if case == "plain" else "; features that are not drawn by an optimised law"),
    )

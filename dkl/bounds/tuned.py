"""The theory of tuned random features as numbers: how its hyper-parameters may scale, and H's smallest eigenvalue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dkl.bounds.certificate import Bound, scope
from dkl.plain_text import Printed

# The exponent phi of figure 2: 1/10 for losses that are Lipschitz, 1/6 for the squared error.
_EXPONENTS = {"hinge": 0.1, "log_loss": 0.1, "epsilon_insensitive": 0.1, "squared_error": 1.0 / 6.0}
Decay = Literal["polynomial", "exponential"]


@dataclass(frozen=True)
class Schedule(Printed):
    """The ranges of lambda, Lambda and gamma that figure 2 admits, each with all constants taken as 1.

    Parameters
    ----------
    lam, Lam, gamma : tuple of float
        From the lower rate (Omega) to the upper one (O).
    n_rows, n_frequencies : float
        The N and D that the rates are of.
    phi : float
        1/10 for Lipschitz losses, 1/6 for the squared error.
    covers, excludes : str

    Examples
    --------
    >>> from dkl.bounds import schedules
    >>> admitted = schedules(1e6, 4)
    >>> admitted.lam[0] < admitted.lam[1], admitted.phi
    (True, 0.16666666666666666)
    """

    lam: tuple[float, float]
    Lam: tuple[float, float]
    gamma: tuple[float, float]
    n_rows: float
    n_frequencies: float
    phi: float
    covers: str = (
        "rates of lambda, Lambda and gamma in N and D under which the learned function converges uniformly, constants "
        "taken as 1"
    )
    excludes: str = (
        "constants, which are not given (two sizes of a problem compare, one value means nothing); the decay of the "
        "meta-kernel's eigenvalues, which is assumed; the proofs are in a supplement that is not at hand, so that the "
        "rates are figure 2's as printed, unchecked"
    )

    @property
    def is_vacuous(self) -> bool:
        """Whether constants of 1 leave no value."""
        return bool(self.conflicts)

    @property
    def conflicts(self) -> tuple[str, ...]:
        """The parameters whose lower rate exceeds the upper one at these N and D: no constant of 1 satisfies both."""
        return tuple(name for name in ("lam", "Lam", "gamma") if getattr(self, name)[0] > getattr(self, name)[1])

    def __repr__(self) -> str:
        head = f"Shilton et al. 2022, figure 2, N = {self.n_rows:g}, D = {self.n_frequencies:g}, phi = {self.phi:.4g}"
        lines = [f"  {name} from {low:.4g} to {high:.4g}" for name, (low, high) in self._ranges]
        said = [f"  no value of {', '.join(self.conflicts)} with constants of 1"] if self.conflicts else []
        return "\n".join([head, *lines, *said, *scope(self)])

    @property
    def _ranges(self) -> list[tuple[str, tuple[float, float]]]:
        return [("lam", self.lam), ("Lam", self.Lam), ("gamma", self.gamma)]


def schedules(
    n_rows: float,
    n_frequencies: float,
    *,
    loss: str = "squared_error",
    decay: Decay = "polynomial",
    rate: float = 1.0,
    eps: float = 0.01,
) -> Schedule:
    """How lambda, Lambda and gamma must go to 0 with N and D for uniform convergence (figure 2).

    lam between N^(eps - phi) and the smaller of N^-eps and D^(-(rate + 1)/2), or exp(-rate D / 2) / sqrt(D) for an
    exponential decay; Lam between N^(eps - phi) and N^-eps; gamma between D^(eps - 1) and D^-eps. These are rates,
    whose constants the paper does not give: compare two sizes of a problem, do not set a parameter by one.

    Parameters
    ----------
    n_rows, n_frequencies : float
        N and D, at least 2.
    loss : {"squared_error", "hinge", "log_loss", "epsilon_insensitive"}
    decay : {"polynomial", "exponential"}
        How the eigenvalues of the meta-kernel's matrix fall: D i^-rate, or D exp(-rate i).
    rate : float
        >= 1: nu, or c.
    eps : float
        Positive and below phi / 2, or no rate lies between the others.

    Returns
    -------
    Schedule

    Raises
    ------
    ValueError
        If a number is out of its range, or the theory does not cover the loss.

    Examples
    --------
    >>> from dkl.bounds.tuned import schedules
    >>> schedules(1e6, 4, loss="squared_error").conflicts
    ()
    """
    if loss not in _EXPONENTS:
        raise ValueError(
            f"loss is {loss!r}, which is neither Lipschitz nor the squared error; figure 2 covers {sorted(_EXPONENTS)}"
        )
    phi = _EXPONENTS[loss]
    if decay not in ("polynomial", "exponential"):
        raise ValueError(f"decay is {decay!r}; it must be 'polynomial' or 'exponential'")
    if not (n_rows >= 2 and n_frequencies >= 2 and rate >= 1.0 and 0.0 < eps < phi / 2.0):
        raise ValueError(
            f"n_rows={n_rows!r} and n_frequencies={n_frequencies!r} must be at least 2, rate={rate!r} at least 1, and "
            f"eps={eps!r} between 0 and phi / 2 = {phi / 2.0:.4g}"
        )
    N, D = float(n_rows), float(n_frequencies)
    # The upper rate of lambda in D, by how fast the eigenvalues of the meta-kernel's matrix fall.
    by_features = D ** (-0.5 * (rate + 1.0)) if decay == "polynomial" else math.exp(-0.5 * rate * D) / math.sqrt(D)
    # The rates of figure 2, each with its constant taken as 1.
    low, high = N ** (eps - phi), N**-eps
    return Schedule((low, min(high, by_features)), (low, high), (D ** (eps - 1.0), D**-eps), N, D, phi)


def inverse_eigenvalue_bound(eigenvalues: np.ndarray, *, gamma: float) -> Bound:
    """1 / (the smallest eigenvalue of H): how little the penalty may resist a change of the density (section 4.3).

    An eigenvalue t of the meta-kernel's matrix G gives H the eigenvalue ``t / (t + c)^2``, c = gamma D, so the value is
    the larger of ``t + 2 c + c^2 / t`` at the two extreme t, exactly: the function is convex in t. The printed bound
    has ``4 t_max`` where gamma is at most ``sqrt(t_max t_min) / D``, and above that the exact value.

    Parameters
    ----------
    eigenvalues : ndarray of shape (D,)
        Of G, in any order.
    gamma : float
        Positive.

    Returns
    -------
    Bound
        Infinite where the smallest eigenvalue of G is 0. With lam and Lam, ``lam / Lam * sqrt(value)`` is what must
        stay bounded as D grows (assumption 2 of section 4.3).

    Raises
    ------
    ValueError
        If an eigenvalue is negative or `gamma` is not positive.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.bounds.tuned import inverse_eigenvalue_bound
    >>> inverse_eigenvalue_bound(np.array([1.0, 4.0]), gamma=1.5).value
    16.0
    """
    t = np.asarray(eigenvalues, dtype=np.float64)
    if not (t.size and np.isfinite(t).all() and t.min() >= 0.0):
        raise ValueError("eigenvalues must be finite numbers >= 0; clip those that rounding has made negative")
    if not (math.isfinite(gamma) and gamma > 0.0):
        raise ValueError(f"gamma must be a positive finite number, got {gamma!r}")
    c, low, high = gamma * t.size, float(t.min()), float(t.max())
    turn = math.sqrt(low * high) / t.size
    # (t + c)^2 / t is convex in t and least at t = c: its largest value is at one of the extreme eigenvalues.
    value = max(_inverse(low, c), _inverse(high, c))
    return Bound(
        theorem="Shilton et al. 2022, section 4.3 (exact)",
        value=value,
        terms={"t_min": low, "t_max": high, "gamma": gamma, "gamma where the extremes change": turn},
        probability=1.0,
        vacuous_from=math.inf,
        covers="the matrix H of these frequencies, whatever the data",
        excludes="other draws of the frequencies; densities that the floor binds, which meet a stiffer penalty",
    )


def _inverse(t: float, c: float) -> float:
    """1 / (t / (t + c)^2)."""
    return t + 2.0 * c + c * c / t if t > 0.0 else math.inf

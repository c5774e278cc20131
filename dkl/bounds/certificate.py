"""Bounds that theorems give for a fit: `Bound`, one number with its terms and what it covers; `Bounds`, a learner's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Protocol, Self

import numpy as np

from dkl.plain_text import Printed


class Certificate(Protocol):
    """A statement about a fit: what it covers, what it excludes, and whether it is vacuous."""

    @property
    def covers(self) -> str: ...

    @property
    def excludes(self) -> str: ...

    @property
    def is_vacuous(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class Bound(Printed):
    """A theorem's bound on one quantity.

    Parameters
    ----------
    theorem : str
        Paper and number, and "corrected" or "as printed" where the two differ.
    value : float or ndarray
        The bound; an array where the theorem gives one number for each of many things at once.
    terms : mapping of str to float or ndarray
        The terms of the value by name, and the constants that were chosen.
    probability : float
        That the bound holds, over the draw of the rows; 1 for what is certain.
    vacuous_from : float or None
        A value from which on it says nothing that was not known.
    covers : str
        Of what, and under which conditions.
    excludes : str
        What a reader might take it to cover, and it does not.

    Examples
    --------
    >>> from dkl.bounds import potential_deviation
    >>> bound = potential_deviation(1e6, n_candidates=1_000)
    >>> round(bound.value, 4), bound.vacuous_from
    (0.0092, 1.0)
    """

    theorem: str
    value: Any
    terms: Mapping[str, Any]
    probability: float
    vacuous_from: float | None
    covers: str
    excludes: str

    @property
    def is_vacuous(self) -> bool:
        """Whether none of the values says anything."""
        return self.vacuous_from is not None and bool(np.all(np.asarray(self.value) >= self.vacuous_from))

    def __repr__(self) -> str:
        said = "; vacuous" if self.is_vacuous else ""
        lines = [f"{self.theorem}: {_shown(self.value)} with probability {self.probability:g}{said}"]
        # The terms tell what would have to change for the bound to say more: rows, candidates, or confidence.
        lines += [f"  {name} = {_shown(term)}" for name, term in self.terms.items()]
        return "\n".join([*lines, *scope(self)])


class Bounds(Printed, tuple[Certificate, ...]):
    """The certificates that a fitted learner carries, each with its own probability of failure.

    Parameters
    ----------
    bounds : iterable of Bound, LearningRate or Schedule
    why_none : str
        The reason, where there are none.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> learner = dkl.PosteriorFeatures(n_candidates=50, n_features=10, random_state=0).fit(X, X[:, 0] > 0)
    >>> len(learner.bounds_), learner.bounds_[0].theorem
    (3, 'Letarte et al. 2019, theorem 3 (tightened)')
    """

    why_none: str

    def __new__(cls, bounds: Iterable[Certificate] = (), why_none: str = "") -> Self:
        # A tuple is made by __new__: the reason is set on the new object, which has no other state.
        made = super().__new__(cls, bounds)
        made.why_none = why_none
        return made

    def __repr__(self) -> str:
        return "\n".join(map(repr, self)) or f"no bounds: {self.why_none}"


def scope(certificate: Certificate) -> list[str]:
    """The printed lines of what a certificate covers and what not."""
    said = f"covers: {certificate.covers}", f"does not cover: {certificate.excludes}"
    return [line for text in said for line in wrap(text, 100, initial_indent="  ", subsequent_indent="    ")]


def check_eps(eps: float) -> None:
    """Raise ValueError for what is no probability of failure."""
    if not 0.0 < eps < 1.0:
        raise ValueError(f"eps is a probability of failure between 0 and 1, got {eps!r}")


def check_losses_of_pairs(n_rows: float, t: float, eps: float) -> None:
    """Raise ValueError where losses over pairs of rows have no PAC-Bayesian bound with this t and eps."""
    if not (math.isfinite(t) and t > 0.0):
        raise ValueError(f"t must be a positive finite number, got {t!r}; for the prior any will do, such as sqrt(n)")
    check_eps(eps)
    if not n_rows >= 2.0:
        raise ValueError(f"the loss is one over pairs of rows, but n_rows is {n_rows:g}")


def _shown(value: float | np.ndarray) -> str:
    """A number, or the range of many."""
    if np.ndim(value) == 0:
        return f"{float(value):.4g}"
    values = np.asarray(value)
    return f"{values.min():.4g} to {values.max():.4g} ({values.size} values)"

"""Successive halving: many trials with a little of a resource, the best of them with more, in rungs without a race."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from dkl.linear.judge import ranked
from dkl.model_selection.proposals import Proposer
from dkl.model_selection.search_loop import Budget, Journal

# eta of the paper: two thirds of the trials end with each rung.
_FACTOR = 3


@dataclass(frozen=True)
class Ladder:
    """The rungs of a search by halving.

    Parameters
    ----------
    name : str
        The parameter that is the resource: ``"epochs"``.
    amounts : tuple of int
        Of each rung, ascending.
    factor : float
        One in so many trials is promoted to the next rung.
    """

    name: str
    amounts: tuple[int, ...]
    factor: float

    def survivors(self, count: int) -> int:
        """How many of `count` trials are promoted."""
        return max(1, int(count / self.factor))


def ladder_of(given: object) -> Ladder:
    """The rungs that ``halving=(name, least, most)`` or ``(name, least, most, factor)`` asks for.

    Raises
    ------
    ValueError
        For anything else, or amounts that do not rise.
    """
    if not isinstance(given, tuple) or len(given) not in (3, 4) or not isinstance(given[0], str):
        raise ValueError(
            f"halving is {given!r}; expected (name, least, most) or (name, least, most, factor), such as "
            "('epochs', 1, 27)"
        )
    name, least, most = given[:3]
    factor = given[3] if len(given) == 4 else _FACTOR
    if not (isinstance(least, Integral) and isinstance(most, Integral) and 1 <= int(least) < int(most)):
        raise ValueError(f"halving goes from {least!r} to {most!r} {name}; expected whole numbers, the lower first")
    if not (isinstance(factor, Real) and float(factor) > 1.0):
        raise ValueError(f"halving has the factor {factor!r}; expected a number above 1")
    amounts, step = [int(least)], float(factor)
    # Rounded up, so that each rung has at least one unit more; the last one has exactly what was asked for.
    while (following := math.ceil(amounts[-1] * step)) < int(most):
        amounts.append(following)
    return Ladder(name, (*amounts, int(most)), step)


def search_by_halving(
    proposer: Proposer, journal: Journal, budget: Budget, ladder: Ladder
) -> dict[int, dict[str, Any]]:
    """Judge the trials rung by rung.

    A rung begins when all of the one below is judged, and ranks it by score, of equals the first: the same trials
    are promoted however many workers there are, and wherever the search is taken up again. Each rung fits anew with
    more of the resource, so that a trial's score is that of a plain fit; with a factor of 3 this costs half as much
    again as going on would.

    Parameters
    ----------
    proposer : Proposer
        Its initial design is the lowest rung.
    journal : Journal
    budget : Budget
    ladder : Ladder

    Returns
    -------
    dict of int to dict
        The parameters of all trials, by number: those of the lowest rung come first.

    References
    ----------
    Jamieson & Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization".
    """
    empty = np.empty((0, proposer.space.width))
    # No score is known yet, so the first rung is the Latin hypercube of the proposer.
    points = proposer.propose(empty, np.empty(0), proposer.n_initial)
    running = [proposer.space.decode(point) for point in points]
    trials: dict[int, dict[str, Any]] = {}
    for amount in ladder.amounts:
        # A promoted trial is a new one with a number of its own, since it is fitted anew: the record keeps both scores.
        rung = {len(trials) + place: {**values, ladder.name: amount} for place, values in enumerate(running)}
        trials |= rung
        # A rung that was not judged whole cannot be ranked: who is promoted would depend on the order of the workers.
        if not journal.judge(rung, budget.deadline):
            break
        best = ranked([journal.record.score(trial) for trial in rung])[: ladder.survivors(len(rung))]
        running = [running[place] for place in best]
        if not running:
            break
    return trials

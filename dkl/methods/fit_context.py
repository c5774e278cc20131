"""Settings that a machine passes to the fit of its features, in addition to their parameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from dkl.linear.minibatches import HeldOut

T = TypeVar("T")


@dataclass(frozen=True)
class FitContext:
    """Settings of a machine for the fit of its features; a learner fitted alone has the defaults.

    Parameters
    ----------
    withheld : HeldOut or None
        Rows on which the machine compares penalties. Features searched on these rows would fit them too well, so the
        search leaves them out, and the machine fits its own linear model afterwards.
    for_machine : bool
        A machine fits its own linear model on the features, and the learner's model is only its start, so the latter
        need not converge.
    is_pilot : bool
        The fit only serves a comparison by the machine; its unfinished model is not shown to subscribers.
    hints : bool
        Whether to suggest other settings to the user; False where a machine chooses them.
    judging_seed : int or None
        The seed of the rows that the machine holds out, if categories are encoded by target means: the means exclude
        the targets of these rows, so that only they may judge. None without such categories; each learner may then hold
        out other rows.
    weighs : bool
        False ends the fit after the candidates, their scaling and bandwidth: federated sites, which agree on them, add
        the sums of their rows later.
    metric : (ndarray, float) or None
        A metric learned from the same rows and scaling, independently of the learner's kernel, and the bandwidth in it
        for a `sigma_factor` of 1: it is used in place of learning one.
    prepared : dict or None
        A cache of scalers, bandwidths and moments of targets, by what they were computed from, which fits to the same
        rows read and extend (`once`). None if there are no other fits to these rows.
    """

    withheld: HeldOut | None = None
    for_machine: bool = False
    is_pilot: bool = False
    hints: bool = True
    weighs: bool = True
    judging_seed: int | None = None
    metric: tuple[np.ndarray, float] | None = None
    prepared: dict[Any, Any] | None = None

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The result of `compute`, which only the first of the fits that share `prepared` calls."""
        if self.prepared is None:
            return compute()
        if key not in self.prepared:
            self.prepared[key] = compute()
        value: T = self.prepared[key]
        return value

    def held_out(self, share: float, seed: int) -> HeldOut:
        """A share of rows to hold out, by the machine's seed if target means exclude its rows, else the learner's."""
        return HeldOut(share, seed if self.judging_seed is None else self.judging_seed)

    def judging(self, share: float, seed: int) -> HeldOut:
        """The rows that judge a learner's rounds: those that the machine withholds, else `held_out`."""
        withheld = self.withheld
        return withheld if withheld is not None and withheld.share > 0.0 else self.held_out(share, seed)

    def left_out(self, share: float, seed: int, *, needs_rows: bool) -> HeldOut | None:
        """The rows from which a search does not learn: those of `judging`, or, without a need for these, `withheld`."""
        return self.judging(share, seed) if needs_rows else self.withheld

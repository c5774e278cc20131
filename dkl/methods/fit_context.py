"""Settings that a machine passes to the fit of its features, in addition to their parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.linear.minibatches import HeldOut


@dataclass(frozen=True)
class FitContext:
    """The circumstances of a learner's fit; one that is fitted by itself has the default.

    Parameters
    ----------
    withheld : HeldOut or None
        Rows on which the machine will judge its penalty. Features that were searched for on these rows would look
        too good there, so a search leaves them out, and the machine fits a linear model of its own afterwards.
    for_machine : bool
        A machine fits a linear model of its own on the features, so that the learner's own model is only where that
        one starts: it need not settle.
    is_pilot : bool
        The fit only serves to judge a choice of the machine. Its model so far is not shown to subscribers.
    hints : bool
        Whether to suggest other settings to the user; not where a machine chooses them.
    judging_seed : int or None
        The seed of the rows that the machine holds out, where categories are coded by target means: the targets of
        these rows enter the code of no other one, so that whatever judges has to be among them. None where nothing is
        coded, and each learner may hold out rows of its own.
    weighs : bool
        False ends the fit once the candidates, their scaling and bandwidth are there: those who agree on them weigh
        them by the sums of rows that come later.
    metric : (ndarray, float) or None
        A metric that was learned from the same rows in the same scaling, by rounds that the learner's kernel has no
        part in, and the bandwidth in it at `sigma_factor` 1: it is not learned again.
    prepared : dict or None
        By source of rows and preparation, the scalers and bandwidths that earlier fits to the same rows have found;
        each fit adds its own. None where no other fit is to these rows.
    """

    withheld: HeldOut | None = None
    for_machine: bool = False
    is_pilot: bool = False
    hints: bool = True
    weighs: bool = True
    judging_seed: int | None = None
    metric: tuple[np.ndarray, float] | None = None
    prepared: dict[Any, Any] | None = None

    def held_out(self, share: float, seed: int) -> HeldOut:
        """A share of the rows to hold out, by a learner's seed, or by a machine's whose codes exclude these rows."""
        return HeldOut(share, seed if self.judging_seed is None else self.judging_seed)

    def judging(self, share: float, seed: int) -> HeldOut:
        """The rows that judge a learner's rounds: the rows that the machine withholds, else `held_out`."""
        given = self.withheld
        return given if given is not None and given.share > 0.0 else self.held_out(share, seed)

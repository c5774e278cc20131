"""The usual time of a machine without settings, estimated from its effort and the size of the rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dkl.machines.contest import MOST_SPENT
from dkl.machines.effort import EFFORTS, MOST_JUDGED, SINGLE, Shape

# Seconds of a core for reading and mapping one number of the table for one model. Found from 18 fits of 1e5 to 1e7 rows
# on two cores, if the last fit takes all of the budget that may be reserved for it.
_A_NUMBER = 3.2e-7
# Rows from which trials take their whole budget; with fewer they end sooner, in proportion (fits of 150 to 569 rows).
_FULL_TRIALS = 600
# Rows beyond which the last fit does not take its share of the budget: linear rows are fitted by their columns, rounds
# of steps use a sample, and waves that descend step through few rows. With it the estimates of nine fits of smooth,
# step-like and linear rows, of 1e5, 1e6 and 1e7 rows of 28 columns, are within a factor of 1.9 of what they took.
_MOST_FITTED = 100_000
# Usual passes of a fit, most of them over the sample; between the means of fits with the least and the most effort.
_PASSES = 110
# Factor of the longest time over the usual one: the largest that was seen in 41 fits of tables is 1.8.
_AT_MOST = 3.0


@dataclass(frozen=True)
class UsualTime:
    """The estimated time of choosing features and fitting on them.

    Parameters
    ----------
    seconds, at_most : float
        The usual and the longest time.
    passes : int
        The usual number of passes.
    fixed : float
        The part of `seconds` that trials take, which depends on neither rows nor slots.
    """

    seconds: float
    at_most: float
    passes: int
    fixed: float

    def at(self, longer: float) -> UsualTime:
        """The estimate if everything but the trials takes `longer` times as long."""
        seconds = self.fixed + (self.seconds - self.fixed) * longer
        return replace(self, seconds=seconds, at_most=self.fixed + (self.at_most - self.fixed) * longer)


def usual_time(
    effort: str, shape: Shape, *, sampled: int, is_sparse: bool, slots: int, flops_per_second: float
) -> UsualTime:
    """The usual time of a machine without settings on rows of this shape: that of the work that its effort allows.

    Trials take the constant part of the budget on one core. The part that grows with the table is taken by trials as
    well, as far as the sample has all rows, and else by the last fit, which all slots share: on at most 100,000 rows.
    Of sparse rows few kinds of features are tried, which leave most of it, and all rows are fitted.

    Parameters
    ----------
    effort : {"fast", "balanced", "best"}
    shape : Shape
        Of all rows, not of the sample.
    sampled : int
        Rows of the sample that candidates are tried on.
    is_sparse : bool
    slots : int
        Blocks that are computed at the same time.
    flops_per_second : float
        The speed of a matrix product on one thread.
    """
    budget, columns = EFFORTS[effort], shape.n_columns * shape.n_models
    trials = 1e-9 * budget.work * min(1.0, shape.n_rows / _FULL_TRIALS) * max(1.0, sampled / MOST_JUDGED)
    fitted = shape.n_rows if is_sparse else min(shape.n_rows, max(_MOST_FITTED, sampled))
    # the share of the growing part that one core computes: a sample is one block
    alone = 0.0 if is_sparse else min(1.0, sampled / max(shape.n_rows, 1))
    cores = 1.0 / (alone + (1.0 - alone) / slots)
    usual, longest = (
        trials + columns * (MOST_SPENT * 1e-9 * budget.work_a_value * rows + _A_NUMBER * shape.n_rows) / cores
        for rows in (fitted, shape.n_rows)
    )
    # work is counted at 1 / SINGLE operations a nanosecond; the square root, since the speed of memory differs less
    # between machines than that of products: one with 1.5 times the operations a second took .9 of the time in 7 fits
    pace = np.sqrt(1e9 / SINGLE / flops_per_second)
    return UsualTime(pace * usual, _AT_MOST * pace * longest, _PASSES, pace * trials)

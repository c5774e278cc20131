"""The driver of a tuned problem, by its loss."""

from __future__ import annotations

from typing import Protocol

from dkl.methods.density.hinge_driver import HingeDriver
from dkl.methods.density.loss_table import TUNED_LOSSES, TunedLoss
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.methods.density.squared_driver import SquaredErrorDriver
from dkl.protocols.driver import Driver


class TunedDriver(Driver[TunedProblem, TunedState], Protocol):
    """Shilton et al. 2022, equation (22), by sums over blocks: exact, deterministic, with a duality gap at the end."""

    def metrics(self, problem: TunedProblem, state: TunedState) -> dict[str, float]:
        """Objective and gap of the accepted point."""
        ...

    def stopped(self, problem: TunedProblem, state: TunedState, why: str) -> TunedState | None:
        """The accepted point as the end; None while that is the start."""
        ...

    def memory(self, problem: TunedProblem, row_bytes: int) -> dict[str, int]:
        """Bytes of the matrices that the driver holds at most."""
        ...


def driver_of(loss: TunedLoss) -> TunedDriver:
    """Normal equations from one pass where the loss allows it, else Newton steps."""
    return SquaredErrorDriver() if TUNED_LOSSES[loss].takes_one_pass else HingeDriver()

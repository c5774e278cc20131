"""The shared part of learners with rounds: the working model's loss, its units, and signs of monotone columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

import numpy as np

from dkl.data.checks import spoken_names
from dkl.data.dataset import Dataset
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.target_statistics import TargetScale, model_targets
from dkl.methods.parameters import check_quantiles
from dkl.methods.rounds.driver import SETTLING
from dkl.methods.rounds.loop import HeldTargets
from dkl.methods.rounds.problem import RoundsProblem
from dkl.solvers.losses import LOG_LINK, Loss
from dkl.solvers.round_losses import ROUND_LOSSES, round_loss


class LossParameters(Protocol):
    """The parameters that determine the loss of a learner's working model."""

    @property
    def loss(self) -> str | None: ...

    @property
    def epsilon(self) -> float: ...

    @property
    def quantiles(self) -> Sequence[float]: ...


@dataclass(frozen=True)
class WorkingLoss:
    """The loss of a working model, and how its targets are scaled.

    Parameters
    ----------
    name : {"squared_hinge", "log_loss", "softmax", "squared_error", "huber", "pinball", "poisson", "gamma"}
    table : Loss
    n_quantiles : int
        The number of quantiles, with a model of each target for each; 0 for every loss but "pinball".
    """

    name: str
    table: Loss
    n_quantiles: int = 0

    @classmethod
    def of(cls, parameters: LossParameters, dataset: Dataset, of_classes: str | None = None) -> WorkingLoss:
        """The loss of the parameters; raises ValueError if it does not match the targets of a dataset.

        The default (None) for numbers is the squared error. For classes it is `of_classes`, if given, else the log loss
        for two classes and the squared error for more.
        """
        classes, several = dataset.classes, dataset.schema.n_targets or 1
        allowed = ("squared_error", *ROUND_LOSSES)
        if classes is not None:
            allowed = ("squared_hinge", "log_loss", "squared_error", *(("softmax",) if len(classes) > 2 else ()))
        name = "squared_error" if parameters.loss is None else parameters.loss
        if parameters.loss is None and classes is not None:
            name = of_classes or ("log_loss" if len(classes) <= 2 else "squared_error")
        if name not in allowed:
            kind = "numbers" if classes is None else f"{len(classes)} classes"
            remedy = "; the hinge is for MarginFeatures(solver='game')" if name == "hinge" else ""
            raise ValueError(f"loss={name!r} is not one of {allowed}, which rounds have for {kind}{remedy}")
        if name == "pinball":
            check_quantiles(parameters.quantiles)
        table = round_loss(name, parameters.epsilon, list(parameters.quantiles) * several)
        return cls(name, table, len(parameters.quantiles) if name == "pinball" else 0)

    def targets(self, dataset: Dataset, scale: TargetScale | None, class_weight: np.ndarray | None) -> NewtonTargets:
        """The targets of the working model, in units of `scale`."""
        return model_targets(dataset, scale, class_weight, n_quantiles=self.n_quantiles)

    def units(self, scale: TargetScale | None) -> TargetScale | None:
        """The units of the model's targets: mean and deviation; for a mean exp(f) only a scale, so f starts at 0."""
        if scale is None or self.name not in LOG_LINK:
            return scale
        return TargetScale(np.zeros_like(scale.center), scale.center)

    def in_own_units(
        self, coef: np.ndarray, intercept: np.ndarray, units: TargetScale | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients (..., K, m) and intercepts (..., K) for targets in `units`, converted to the given targets."""
        if units is None:
            return coef, intercept
        if self.name in LOG_LINK:
            return coef, intercept + np.log(units.scale)
        return units.in_own_units(coef, intercept)


def columns_a_round(total_weight: float) -> int:
    """Columns that a round adds: one for each 60 rows, 5 to 25, since many at once would fit noise of few rows."""
    return int(np.clip(total_weight // 60, 5, 25))


def rounds_problem(
    dataset: Dataset,
    targets: HeldTargets,
    loss: WorkingLoss,
    *,
    total_weight: float,
    features_per_round: int | None,
    search_rows: int,
    for_machine: bool,
    **others: Any,
) -> RoundsProblem:
    """The problem of rounds on a dataset, with the numbers that follow from rows, targets and loss.

    Parameters
    ----------
    dataset : Dataset
    targets : HeldTargets
    loss : WorkingLoss
    total_weight : float
        The weight of all rows, class weights included.
    features_per_round : int or None
        None for `columns_a_round`.
    search_rows : int
        The most rows of the sample.
    for_machine : bool
        Whether a machine fits its own model on the features, so that the rounds' own need not settle.
    """
    return RoundsProblem(
        targets=targets,
        n_models=len(targets.targets.models),
        n_rows=dataset.n_rows,
        n_columns=dataset.n_columns,
        loss=loss.table,
        search_rows=min(search_rows, dataset.n_rows),
        features_per_round=features_per_round or columns_a_round(total_weight),
        settling=0 if for_machine else SETTLING,
        **others,
    )


def monotone_signs(monotone: Mapping[int | str, int] | None, dataset: Dataset, n_models: int) -> np.ndarray | None:
    """The sign of each encoded column, int64 of shape (d,), 0 for columns without one; None if no column has one.

    Raises
    ------
    ValueError
        For an unknown column, a sign other than 1 and -1, and more than two classes.
    """
    if not monotone:
        return None
    if dataset.classes is not None and n_models > 1:
        raise ValueError(
            f"monotone has a meaning for numbers and two classes, and the targets are {n_models} classes; fit each "
            "against the rest, or leave monotone out"
        )
    signs, names = np.zeros(dataset.n_columns, np.int64), dataset.column_names
    for column, sign in monotone.items():
        if sign not in (1, -1) or isinstance(sign, bool):
            raise ValueError(f"monotone[{column!r}] is {sign!r}; it must be 1 (the model rises) or -1 (it falls)")
        if isinstance(column, str):
            if names is None or column not in names:
                remedy = f"they are {spoken_names(names)}" if names else "they have no names: give their numbers"
                raise ValueError(f"monotone: there is no column {column!r} of numbers; {remedy}")
            signs[list(names).index(column)] = sign
        elif isinstance(column, Integral) and not isinstance(column, bool) and 0 <= column < len(signs):
            signs[int(column)] = sign
        else:
            raise ValueError(f"monotone: there is no column {column!r}; there are {len(signs)}, counted from 0")
    return signs

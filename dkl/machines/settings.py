"""What a machine's open parameters come to: loss, penalty, solver and calibration that suit each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from dkl.data.dataset import Dataset
from dkl.linear.newton import NEWTON_LOSSES
from dkl.linear.sgd import CLASSIFICATION_LOSSES, REGRESSION_LOSSES
from dkl.solvers.losses import LOG_LINK

# Newton steps form the products of all features for each model and row: beyond so many operations, or so many classes,
# stochastic steps take less time.
_MOST_WORK, _MOST_CLASSES = 4e13, 30
_FEATURES, _STEPS = 1_000, 8
# The log loss of several classes has one Hessian for all of them.
_MOST_JOINT_CLASSES = 5
_STOCHASTIC = {*CLASSIFICATION_LOSSES, *REGRESSION_LOSSES}


@dataclass(frozen=True)
class OpenParameters:
    """The parameters of a machine that may be left open, as they were given; None for those that were not.

    Parameters
    ----------
    loss : str or None
    alpha : float, "auto" or None
    solver : {"sgd", "newton"} or None
    calibrate : bool or None
    chooses : bool
        The machine chooses its features, too.
    stops_early : bool
        What only stochastic steps have was asked for: early stopping, or a number of epochs.
    """

    loss: str | None
    alpha: float | str | None
    solver: str | None
    calibrate: bool | None
    chooses: bool
    stops_early: bool


@dataclass(frozen=True)
class Settings:
    """What the machine works with.

    Parameters
    ----------
    loss : str
    alpha : float or "auto"
    solver : {"sgd", "newton"}
    calibrate : bool
    """

    loss: str
    alpha: float | str
    solver: str
    calibrate: bool


def settled(given: OpenParameters, task: str, n_rows: int | None = None, n_models: int = 1) -> Settings:
    """Every open parameter at the value that suits the others and the rows; given ones stay.

    Parameters
    ----------
    given : OpenParameters
    task : {"classification", "regression"}
    n_rows : int or None
        None before rows were seen.
    n_models : int
        Linear models side by side: one for two classes, else one a class or target.
    """
    # Features that the user chose have the defaults that they always had; without any settings the exact steps and the
    # penalty that held-out rows prefer do best, as long as the rows are not too many.
    solver = given.solver
    if solver is None:
        may_be_exact = not given.stops_early and (given.loss is None or given.loss in NEWTON_LOSSES)
        exact = may_be_exact and (given.chooses or given.alpha == "auto")
        most_classes = _MOST_JOINT_CLASSES if given.loss == "log_loss" else _MOST_CLASSES
        work = 2.0 * _STEPS * (n_rows or 0) * _FEATURES**2 * (1 if task == "regression" else n_models)
        solver = "newton" if exact and work <= _MOST_WORK and n_models <= most_classes else "sgd"
        solver = solver if given.loss is None or given.loss in _STOCHASTIC else "newton"
    loss = given.loss
    if loss is None:
        exact_loss = "squared_hinge" if task == "classification" else "squared_error"
        loss = exact_loss if solver == "newton" or task == "regression" else "hinge"
    alpha = given.alpha
    if alpha is None:
        alpha = "auto" if given.chooses and solver == "newton" else 1e-5
    elif alpha == "auto" and solver == "sgd" and given.solver is None:
        # A penalty is judged by Newton steps; stochastic ones, taken for many rows, have a light one by default.
        alpha = 1e-5
    calibrate = given.chooses if given.calibrate is None else given.calibrate
    return Settings(loss, alpha, solver, calibrate)


class SettledMixin:
    """What machines with open parameters have: the settings that these come to, before a fit and after it."""

    features: Any
    loss: str | None
    alpha: float | str | None
    epochs: int | None
    solver: str | None
    early_stopping: bool
    _task: ClassVar[Any]

    @property
    def _settings(self) -> Settings:
        """What the open parameters come to; for a fitted machine, what they came to on its rows."""
        settings = settled(self._open_parameters(), self._task)
        if self.solver is None and hasattr(self, "solver_"):
            return replace(settings, solver=self.solver_, loss=self.loss_)
        return settings

    @property
    def _chooses(self) -> bool:
        """Whether the machine chooses its features."""
        return isinstance(self.features, str) and self.features == "auto"

    def _open_parameters(self) -> OpenParameters:
        return OpenParameters(
            self.loss,
            self.alpha,
            self.solver,
            getattr(self, "calibrate", False),
            chooses=self._chooses,
            stops_early=self.early_stopping or self.epochs is not None,
        )

    def _settle(self, dataset: Dataset) -> Settings:
        """The settings for these rows, which the machine keeps from now on."""
        n_classes = dataset.schema.n_classes or 1
        settings = settled(self._open_parameters(), self._task, dataset.n_rows, 1 if n_classes == 2 else n_classes)
        self.loss_, self.solver_ = settings.loss, settings.solver
        return settings

    @property
    def _exposure_weighs(self) -> bool | None:
        """Whether a row of twice the exposure counts twice, as those of counts do; None for losses without exposure."""
        loss = LOG_LINK.get(self._settings.loss)
        return None if loss is None else loss.counts_exposure

    def _judging_loss(self) -> dict[str, Any]:
        """The loss that kinds of features are judged by, whatever the machine's own is: one with a Hessian."""
        loss = self._settings.loss
        exact = "squared_hinge" if self._task == "classification" else "squared_error"
        return {"loss": loss if loss in NEWTON_LOSSES else exact, "alpha": "auto"}

    def _check_solver(self) -> None:
        """Raise ValueError for solver, loss, alpha and early stopping that do not go together."""
        settings = self._settings
        if settings.solver == "newton" and settings.loss not in NEWTON_LOSSES:
            loss = "squared_hinge" if self._task == "classification" else "squared_error"
            raise ValueError(
                f"solver='newton' needs a loss with a Hessian: loss={loss!r}, got loss={settings.loss!r}; "
                "or use solver='sgd'"
            )
        if settings.solver == "sgd" and settings.loss not in _STOCHASTIC:
            raise ValueError(
                f"loss={settings.loss!r} has no stochastic steps, which are those of scikit-learn's partial_fit; use "
                "solver='newton', which needs a handful of passes, or leave solver out"
            )
        if settings.solver != "newton" and settings.alpha == "auto":
            raise ValueError(
                f"alpha='auto' is chosen by Newton steps: set solver='newton', got solver={settings.solver!r}; or give "
                "alpha a number"
            )
        if settings.solver == "newton" and self.early_stopping:
            raise ValueError("solver='newton' goes to the optimum: early_stopping has no meaning; set it to False")

"""The values of open parameters of a machine: loss, penalty, solver and calibration that suit each other."""

from __future__ import annotations

from dataclasses import dataclass

from sklearn.base import clone

from dkl.linear.newton import NEWTON_LOSSES
from dkl.methods.base import FeatureLearner
from dkl.solvers.losses import LOG_LINK

# Operations of Newton steps of losses other than the squared error, and classes of the squared hinge, which forms a
# Hessian for each, beyond which stochastic steps are taken; features and steps that the operations are counted for.
_MOST_WORK, _MOST_CLASSES = 4e13, 30
_FEATURES, _STEPS = 1_000, 8
# Losses that take exact steps unless a parameter of stochastic ones is given.
_EXACT_BY_DEFAULT = (*LOG_LINK, "pinball")
# The penalty alpha of stochastic steps.
LIGHT = 1e-5


@dataclass(frozen=True)
class OpenParameters:
    """The parameters of a machine that may be left open, as the user gave them; None for open ones.

    Parameters
    ----------
    loss : str or None
    alpha : float, "auto", "evidence" or None
    solver : {"sgd", "newton"} or None
    calibrate : bool or None
    chooses : bool
        The machine chooses its features, too.
    stops_early : bool
        The user gave a parameter of stochastic steps: early stopping, or a number of epochs.
    """

    loss: str | None
    alpha: float | str | None
    solver: str | None
    calibrate: bool | None
    chooses: bool
    stops_early: bool


@dataclass(frozen=True)
class Knobs:
    """The parameters of features that the machine has, too; "auto" leaves each to the features.

    Parameters
    ----------
    n_features : int or "auto"
    scaling : str, None or "auto"
        None is no scaling.
    sigma : float, "median" or "auto"
        The bandwidth of waves and kernels.
    """

    n_features: int | str = "auto"
    scaling: str | None = "auto"
    sigma: float | str = "auto"

    def bandwidth_of(self, learner: FeatureLearner) -> str | None:
        """The parameter of a learner that is its bandwidth; None where it has none."""
        deep = learner.get_params()
        return next((name for name in ("family__sigma", "kernel__sigma") if name in deep), None)

    def turned(self, learner: FeatureLearner) -> FeatureLearner:
        """A copy of a learner with the pinned parameters that it has."""
        turned, given = clone(learner), learner.get_params(deep=False)
        if self.n_features != "auto" and "n_features" in given:
            turned.set_params(n_features=self.n_features)
        if self.scaling != "auto" and "scaling" in given:
            turned.set_params(scaling=self.scaling)
        if self.sigma != "auto" and (name := self.bandwidth_of(learner)) is not None:
            # a factor multiplies a bandwidth that was not given
            factor = {"sigma_factor": 1.0} if "sigma_factor" in given else {}
            turned.set_params(**{name: self.sigma}, **factor)
        return turned

    def check(self, learner: FeatureLearner) -> None:
        """Raise ValueError where a parameter is pinned that the user's own features do not have."""
        given = learner.get_params(deep=False)
        has = {"sigma": self.bandwidth_of(learner), **{name: name in given for name in ("n_features", "scaling")}}
        for name, known in has.items():
            if getattr(self, name) != "auto" and not known:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is pinned, and {type(learner).__name__} has no such parameter; "
                    f"leave {name} at 'auto', or take other features"
                )


@dataclass(frozen=True)
class Settings:
    """The settled parameters of a machine.

    Parameters
    ----------
    loss : str
    alpha : float, "auto" or "evidence"
    solver : {"sgd", "newton"}
    calibrate : bool
    """

    loss: str
    alpha: float | str
    solver: str
    calibrate: bool


def squared_loss(task: str | None) -> str:
    """The squared loss of a task: the squared hinge for labels, the squared error for numbers."""
    return "squared_hinge" if task == "classification" else "squared_error"


def exact_loss(given: OpenParameters, task: str, *, is_wide: bool = False) -> str:
    """The default loss of exact steps: where the machine chooses its features, the squared error.

    Its one Hessian serves all classes, penalties and steps, so that the same work affords many more features, which
    gain more than the squared hinge does. Wide rows have no Hessian and no further features: their labels take the
    squared hinge.
    """
    return "squared_error" if given.chooses and not is_wide else squared_loss(task)


def joint_name(loss: str, solver: str, n_classes: int | None = None) -> str:
    """The name of a loss for a solver: Newton steps of the log loss are of all classes together, as "softmax" is.

    Two classes have one score, of which the softmax is the log loss, too.
    """
    return "log_loss" if loss == "softmax" and (solver == "newton" or n_classes == 2) else loss


def settled(
    given: OpenParameters, task: str, n_rows: int | None = None, n_models: int = 1, *, is_wide: bool = False
) -> Settings:
    """Every open parameter at the value that suits the others and the rows; parameters of the user stay.

    Parameters
    ----------
    given : OpenParameters
    task : {"classification", "regression"}
    n_rows : int or None
        None before rows were seen.
    n_models : int
        Linear models side by side: one for two classes, else one a class or target.
    is_wide : bool
        The machine chooses its features, and the only ones are columns too many for a Hessian.
    """
    # Features of the user keep the defaults of version 0.1; without any settings exact steps at the penalty that
    # held-out rows prefer do best, as long as the rows are not too many.
    solver = given.solver
    if solver is None:
        may_be_exact = not given.stops_early and (given.loss in (None, "softmax") or given.loss in NEWTON_LOSSES)
        # of classes, the squared error has exact steps alone
        only_exact = task == "classification" and given.loss == "squared_error"
        exact = may_be_exact and (given.chooses or isinstance(given.alpha, str) or only_exact)
        named = joint_name(given.loss or exact_loss(given, task, is_wide=is_wide), "newton")
        # the log loss of several classes takes one Gram matrix
        hessians = n_models if named == "squared_hinge" else 1
        work = 2.0 * _STEPS * (n_rows or 0) * _FEATURES**2 * hessians
        # the squared error takes one pass of any number of rows, which is fewer than epochs take; the evidence has a
        # meaning for exact steps alone
        one_pass = named == "squared_error" or given.alpha == "evidence"
        few = one_pass or (is_wide and given.loss is None) or (work <= _MOST_WORK and hessians <= _MOST_CLASSES)
        only_exact = only_exact or (given.loss in _EXACT_BY_DEFAULT and not given.stops_early)
        solver = "newton" if (exact and few) or only_exact else "sgd"
    loss = None if given.loss is None else joint_name(given.loss, solver)
    if loss is None:
        loss = exact_loss(given, task, is_wide=is_wide) if solver == "newton" or task == "regression" else "hinge"
    alpha = given.alpha
    if alpha is None:
        alpha = "auto" if given.chooses and solver == "newton" else LIGHT
    elif alpha == "auto" and solver == "sgd" and given.solver is None:
        # Newton steps compare penalties; stochastic ones, taken for many rows, have a small one by default
        alpha = LIGHT
    calibrate = given.chooses if given.calibrate is None else given.calibrate
    return Settings(loss, alpha, solver, calibrate)

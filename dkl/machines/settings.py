"""Values for a machine's open parameters (loss, penalty, solver, calibration) that suit each other and the rows."""

from __future__ import annotations

from dataclasses import dataclass

from sklearn.base import clone

from dkl.linear.fitting import NEWTON_LOSSES
from dkl.methods.base import FeatureLearner
from dkl.registry import losses_for
from dkl.solvers.losses import LOG_LINK

# Exact steps of losses other than the squared error are the default up to this many rows times Hessians (eight steps
# on 1,000 features then take 4e13 operations, some seven minutes of a core), and up to this many classes of the squared
# hinge, which forms a Hessian for each.
_MOST_ROWS, MOST_CLASSES = 2_500_000, 30
# Losses that have exact steps by default; early stopping or a number of epochs selects stochastic ones.
EXACT_BY_DEFAULT = (*LOG_LINK, "pinball")
# The default penalty alpha of stochastic steps.
SGD_ALPHA = 1e-5


@dataclass(frozen=True)
class OpenParameters:
    """The parameters of a machine that may be left open, as the user gave them; None for open ones.

    Parameters
    ----------
    loss : str or None
    alpha : float, the name of a penalty rule ("auto"), "evidence" or None
    solver : {"sgd", "newton"} or None
    calibrate : bool or None
    chooses : bool
        Whether the machine chooses its features as well.
    stops_early : bool
        Whether the user set a parameter of stochastic steps: early stopping, or a number of epochs.
    """

    loss: str | None
    alpha: float | str | None
    solver: str | None
    calibrate: bool | None
    chooses: bool
    stops_early: bool


@dataclass(frozen=True)
class Knobs:
    """Parameters of features that the user may set at the machine; "auto" leaves each to the features.

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
        """The name of the parameter that is a learner's bandwidth; None for a learner without one."""
        deep = learner.get_params()
        return next((name for name in ("family__sigma", "kernel__sigma") if name in deep), None)

    def with_pinned(self, learner: FeatureLearner) -> FeatureLearner:
        """A copy of a learner with the pinned parameters, as far as it has them; itself if none is pinned."""
        if self == Knobs():
            return learner
        copied, parameters = clone(learner), learner.get_params(deep=False)
        if self.n_features != "auto" and "n_features" in parameters:
            copied.set_params(n_features=self.n_features)
        if self.scaling != "auto" and "scaling" in parameters:
            copied.set_params(scaling=self.scaling)
        if self.sigma != "auto" and (name := self.bandwidth_of(learner)) is not None:
            # a pinned bandwidth is used as it is, without the factor that multiplies the median distance
            factor = {"sigma_factor": 1.0} if "sigma_factor" in parameters else {}
            copied.set_params(**{name: self.sigma}, **factor)
        return copied

    def check(self, learner: FeatureLearner) -> None:
        """Raise ValueError where a parameter is pinned that the user's own features do not have."""
        parameters = learner.get_params(deep=False)
        has = {"sigma": self.bandwidth_of(learner), **{name: name in parameters for name in ("n_features", "scaling")}}
        for name, has_it in has.items():
            if getattr(self, name) != "auto" and not has_it:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is pinned, and {type(learner).__name__} has no such parameter; "
                    f"leave {name} at 'auto', or take other features"
                )


@dataclass(frozen=True)
class Settings:
    """A value for each parameter of a machine that may be left open.

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


def exact_loss(opened: OpenParameters, task: str, *, is_wide: bool = False) -> str:
    """The default loss of exact steps; the squared error where the machine chooses its features.

    One Hessian of the squared error serves all classes, penalties and steps. The same work therefore affords many more
    features, which gain more than the squared hinge does. Wide rows have no Hessian and no further features: their
    labels take the squared hinge.
    """
    return "squared_error" if opened.chooses and not is_wide else squared_loss(task)


def joint_name(loss: str, solver: str, n_classes: int | None = None) -> str:
    """The name of a loss for a solver: "softmax" by Newton steps is "log_loss", as these fit all classes jointly.

    Two classes have one score, of which the softmax is the log loss, too.
    """
    return "log_loss" if loss == "softmax" and (solver == "newton" or n_classes == 2) else loss


def settled(
    opened: OpenParameters, task: str, n_rows: int | None = None, n_models: int = 1, *, is_wide: bool = False
) -> Settings:
    """A value for every open parameter that suits the others and the rows; what the user set is kept.

    Only alpha="auto" adapts to the solver: it is `SGD_ALPHA` where stochastic steps are chosen, which cannot compare
    penalties. Another rule and the evidence select Newton steps, however many the rows are; where another parameter
    excludes these, the rule is kept, and the machine refuses it.

    Parameters
    ----------
    opened : OpenParameters
    task : {"classification", "regression"}
    n_rows : int or None
        None before the rows have been seen.
    n_models : int
        Linear models fitted: one for two classes, else one a class or target.
    is_wide : bool
        The machine chooses its features, and the only candidates are columns that are too many for a Hessian.
    """
    # The user's own features keep the defaults of version 0.1. Without any settings, exact steps at the penalty that
    # held-out rows prefer do best, as long as rows are not too many.
    solver = opened.solver
    if solver is None:
        may_be_exact = not opened.stops_early and (opened.loss in (None, "softmax") or opened.loss in NEWTON_LOSSES)
        only_exact = opened.loss is not None and opened.loss not in losses_for(task, "sgd")
        exact = may_be_exact and (opened.chooses or isinstance(opened.alpha, str) or only_exact)
        named = joint_name(opened.loss or exact_loss(opened, task, is_wide=is_wide), "newton")
        # the log loss of several classes is preconditioned by a single Gram matrix
        hessians = n_models if named == "squared_hinge" else 1
        # the squared error takes one pass for any number of rows, fewer than stochastic epochs take; the evidence and
        # rules that the user names are defined for exact steps only
        one_pass = named == "squared_error" or (isinstance(opened.alpha, str) and opened.alpha != "auto")
        few = (
            one_pass
            or (is_wide and opened.loss is None)
            or ((n_rows or 0) * hessians <= _MOST_ROWS and hessians <= MOST_CLASSES)
        )
        only_exact = only_exact or (opened.loss in EXACT_BY_DEFAULT and not opened.stops_early)
        solver = "newton" if (exact and few) or only_exact else "sgd"
    loss = None if opened.loss is None else joint_name(opened.loss, solver)
    if loss is None:
        loss = exact_loss(opened, task, is_wide=is_wide) if solver == "newton" or task == "regression" else "hinge"
    alpha = opened.alpha
    if alpha is None:
        alpha = "auto" if opened.chooses and solver == "newton" else SGD_ALPHA
    elif alpha == "auto" and solver == "sgd" and opened.solver is None:
        # Newton steps compare penalties; stochastic ones, chosen for many rows, have one small penalty by default
        alpha = SGD_ALPHA
    calibrate = opened.chooses if opened.calibrate is None else opened.calibrate
    return Settings(loss, alpha, solver, calibrate)

"""What a machine's open parameters come to: loss, penalty, solver and calibration that suit each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sklearn.base import clone

from dkl.data.dataset import Dataset
from dkl.linear.newton import NEWTON_LOSSES
from dkl.machines.given_linear import check_given, loss_of_given
from dkl.methods.base import FeatureLearner
from dkl.registry import learner_entry, learner_keys
from dkl.solvers.losses import LOG_LINK, PROBABLE

# The Newton steps of losses other than the squared error form the products of all features for each row, and of the
# squared hinge for each model, in every step: beyond so many operations, or so many classes of the latter, stochastic
# steps take less time.
_MOST_WORK, _MOST_CLASSES = 4e13, 30
_FEATURES, _STEPS = 1_000, 8
# The losses that take exact steps unless something else asks for stochastic ones.
_EXACT_BY_DEFAULT = (*LOG_LINK, "pinball")
# The penalty of stochastic steps.
_LIGHT = 1e-5


@dataclass(frozen=True)
class OpenParameters:
    """The parameters of a machine that may be left open, as they were given; None for those that were not.

    Parameters
    ----------
    loss : str or None
    alpha : float, "auto", "evidence" or None
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
class Knobs:
    """What of the features the machine itself has parameters for; "auto" leaves each to the features.

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
        """A copy of a learner with what is pinned, as far as it has such parameters."""
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
    """What the machine works with.

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
    """The loss of exact steps that is a square: of labels the squared hinge, of numbers the squared error."""
    return "squared_hinge" if task == "classification" else "squared_error"


def exact_loss(given: OpenParameters, task: str) -> str:
    """The loss that exact steps have by default: where the machine chooses its features, the squared error.

    One Hessian serves all classes, penalties and steps of it, so that for the same work there may be many more
    features, which gain more than the squared hinge does.
    """
    return "squared_error" if given.chooses else squared_loss(task)


def joint_name(loss: str, solver: str, n_classes: int | None = None) -> str:
    """The name of a loss for a solver: Newton steps of the log loss are of all classes together, as "softmax" is.

    Two classes have one score, of which the softmax is the log loss, too.
    """
    return "log_loss" if loss == "softmax" and (solver == "newton" or n_classes == 2) else loss


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
        may_be_exact = not given.stops_early and (given.loss in (None, "softmax") or given.loss in NEWTON_LOSSES)
        # of classes, the squared error has exact steps alone
        only_exact = task == "classification" and given.loss == "squared_error"
        exact = may_be_exact and (given.chooses or isinstance(given.alpha, str) or only_exact)
        named = joint_name(given.loss or exact_loss(given, task), "newton")
        # the log loss of several classes takes one Gram matrix
        hessians = n_models if named == "squared_hinge" else 1
        work = 2.0 * _STEPS * (n_rows or 0) * _FEATURES**2 * hessians
        # The sums of one pass are all that the squared error takes, whatever the number of rows: fewer passes than
        # there are epochs. The evidence has no meaning but for exact steps: who asks for it asks for them.
        one_pass = named == "squared_error" or given.alpha == "evidence"
        few = one_pass or (work <= _MOST_WORK and hessians <= _MOST_CLASSES)
        only_exact = only_exact or (given.loss in _EXACT_BY_DEFAULT and not given.stops_early)
        solver = "newton" if (exact and few) or only_exact else "sgd"
    loss = None if given.loss is None else joint_name(given.loss, solver)
    if loss is None:
        loss = exact_loss(given, task) if solver == "newton" or task == "regression" else "hinge"
    alpha = given.alpha
    if alpha is None:
        alpha = "auto" if given.chooses and solver == "newton" else _LIGHT
    elif alpha == "auto" and solver == "sgd" and given.solver is None:
        # A penalty is judged by Newton steps; stochastic ones, taken for many rows, have a light one by default.
        alpha = _LIGHT
    calibrate = given.chooses if given.calibrate is None else given.calibrate
    return Settings(loss, alpha, solver, calibrate)


class SettledMixin:
    """What machines with open parameters have: the settings that these come to, before a fit and after it."""

    features: Any
    linear: Any
    checkpoint: Any
    n_features: int | str
    scaling: str | None
    sigma: float | str
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
        if not hasattr(self, "solver_") or None not in (self.solver, self.loss):
            return settings
        solver = self.solver or self.solver_
        loss = joint_name(self.loss or self.loss_, solver)
        # stochastic steps choose no penalty: they were taken for many rows, and have a light one
        alpha = _LIGHT if solver == "sgd" and settings.alpha == "auto" else settings.alpha
        return replace(settings, solver=solver, loss=loss, alpha=alpha)

    @property
    def _calibrates_by_penalty(self) -> bool:
        """Whether the rows that judge the penalty of given features also find the temperature, unless told not to."""
        settings, is_open = self._settings, getattr(self, "calibrate", None) is None and not self._chooses
        by_penalty = settings.alpha == "auto" and settings.solver == "newton" and settings.loss not in PROBABLE
        return self._task == "classification" and is_open and by_penalty

    @property
    def _knobs(self) -> Knobs:
        """What the user has pinned of the features by the machine's own parameters."""
        return Knobs(self.n_features, self.scaling, self.sigma)

    @property
    def _chooses(self) -> bool:
        """Whether the machine chooses its features."""
        return isinstance(self.features, str) and self.features == "auto"

    def _open_parameters(self) -> OpenParameters:
        if self.linear is not None:
            # its steps are stochastic ones, of a loss and a penalty of its own
            loss, calibrate = loss_of_given(self.linear, self._task), bool(getattr(self, "calibrate", None))
            return OpenParameters(loss, _LIGHT, "sgd", calibrate, chooses=self._chooses, stops_early=True)
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
        return {"loss": loss if loss in NEWTON_LOSSES else "squared_error", "alpha": "auto"}

    def _check_solver(self) -> None:
        """Raise ValueError for solver, loss, alpha and early stopping that do not go together."""
        if self.linear is not None:
            name = type(self).__name__
            check_given(name, self.linear, self._task)
            own = {"loss": None, "alpha": None, "solver": None, "early_stopping": False}
            if pinned := [known for known, default in own.items() if getattr(self, known) != default]:
                raise ValueError(
                    f"{pinned[0]}={getattr(self, pinned[0])!r} is of the linear model that {name} fits by itself, and "
                    f"linear={self.linear!r} has its own; set it there, or leave {pinned[0]} out"
                )
            return
        # those before any row was seen: an earlier fit decides on nothing
        settings = settled(self._open_parameters(), self._task)
        if settings.solver == "sgd" and settings.loss == "squared_error" and self._task == "classification":
            raise ValueError(
                "loss='squared_error' of classes has exact steps only: set solver='newton', or leave it out"
            )
        if settings.solver == "newton" and settings.loss not in NEWTON_LOSSES:
            raise ValueError(
                f"solver='newton' needs a loss with a Hessian: loss={squared_loss(self._task)!r}, got "
                f"loss={settings.loss!r}; or use solver='sgd'"
            )
        is_unlikely = settings.alpha == "evidence" and settings.loss != "squared_error"
        if isinstance(settings.alpha, str) and (settings.solver != "newton" or is_unlikely):
            raise ValueError(
                f"alpha={settings.alpha!r} is chosen by Newton steps: set solver='newton' and "
                f"loss={squared_loss(self._task)!r}, got solver={settings.solver!r} and loss={settings.loss!r}; or "
                "give alpha a number"
            )
        if settings.solver == "newton" and self.early_stopping:
            raise ValueError("solver='newton' goes to the optimum: early_stopping has no meaning; set it to False")

    def _check_features(self) -> None:
        """Raise ValueError for `features` that are neither a learner, nor the name of one, nor None."""
        if not isinstance(self.features, str | FeatureLearner | None):
            raise ValueError(
                f"The 'features' parameter of {type(self).__name__} must be a feature learner such as "
                f"AlignedFeatures(), or one of {sorted(learner_keys())}. Got {self.features!r} instead; other "
                "transformers go before the machine, in a pipeline"
            )
        if isinstance(self.features, FeatureLearner):
            self._knobs.check(self.features)
            own, of_learner = self.checkpoint, self.features.get_params(deep=False).get("checkpoint")
            if own is not None and of_learner is not None and str(own).rstrip("/") == str(of_learner).rstrip("/"):
                raise ValueError(
                    f"checkpoint={str(own)!r} is the folder of {type(self).__name__} and of its "
                    f"{type(self.features).__name__}, whose states would take each other's places; leave the "
                    "learner's out: it has a part of the machine's folder then"
                )
        elif isinstance(self.features, str) and not self._chooses:
            self._knobs.check(learner_entry(self.features).learner_class())
        if getattr(self.features, "monotone", None):
            name = type(self.features).__name__
            raise ValueError(
                f"the coefficients of {type(self).__name__} are fitted without signs, and {name}(monotone=...) would "
                f"not keep its word; fit {name} itself and take its machine_"
            )

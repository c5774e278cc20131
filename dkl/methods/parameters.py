"""Constraints on the learners' parameters, declared once: the only module that imports scikit-learn's validation."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform, runtime_checkable

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    InvalidParameterError,
    Options,
    RealNotInt,
    StrOptions,
    validate_parameter_constraints,
)

from dkl.data.dataset import Dataset
from dkl.events import Subscriber
from dkl.features.dictionaries import Dictionaries, ListedDictionary
from dkl.features.families import Family, FiniteFamily, Gaussian
from dkl.methods.density.loss_table import TUNED_LOSSES
from dkl.passes.room import checked_limit
from dkl.protocols.estimators import Estimator
from dkl.registry import PENALTY_RULES, learner_keys, losses_for
from dkl.solvers.round_losses import ROUND_LOSSES

E = TypeVar("E")

Constraints = dict[str, list[Any]]
# Types of parameters that many estimators share.
ClassWeight = Mapping[Any, float] | str | None
RandomState = int | np.random.RandomState | None
StorePath = str | os.PathLike[str] | None
Progress = bool | Subscriber | None

# Upper bounds of counts, rows, floats and powers: no computer has the memory or time for more, and squares of larger
# floats would overflow in sums.
_MOST, _MOST_ROWS, _LARGEST, _LARGEST_POWER = 10**12, 2**53, 1e100, 1_000
# A class with a larger weight would make the others vanish in a floating-point sum.
_LARGEST_FACTOR = 1e15


@runtime_checkable
class Constrained(Estimator, Protocol):
    """An estimator that declares the constraints of those parameters that take other values than is usual."""

    _parameter_constraints: ClassVar[Constraints]


class OnFamily(Constrained, Protocol):
    """A learner whose frequencies come from a family; None is the default family."""

    family: Family | None


@dataclass_transform(eq_default=False)
def estimator(cls: type[E]) -> type[E]:
    """Give an estimator class an `__init__` of its annotated parameters, which sets attributes of the same names.

    Parameters of a base class that is decorated, too, follow the class's own, with the base's default unless the class
    has another; a parameter that the class annotates as `ClassVar` is dropped. The result is no dataclass, since
    saving, comparing and hashing must include fitted attributes.
    """
    own: dict[str, Any] = dict(vars(cls).get("__annotations__", {}))
    of_base = {
        name: parameter
        for name, parameter in inspect.signature(super(cls, cls).__init__).parameters.items()  # type: ignore[misc]
        if parameter.default is not inspect.Parameter.empty
    }
    for name, parameter in of_base.items():
        if not str(own.get(name)).startswith("ClassVar"):
            default = vars(cls).get(name, parameter.default)
            setattr(cls, name, dataclasses.field(default=default, kw_only=parameter.kind is parameter.KEYWORD_ONLY))
    new = {name: hint for name, hint in own.items() if name not in of_base}
    cls.__annotations__ = new | {name: own.get(name, parameter.annotation) for name, parameter in of_base.items()}
    built = dataclasses.dataclass(eq=False, repr=False)(cls)
    built.__annotations__ = own
    for name in ("__dataclass_fields__", "__dataclass_params__", "__match_args__"):
        delattr(built, name)
    return built


def _count(least: int) -> Interval:
    """The constraint of integers from `least` on."""
    return Interval(Integral, least, _MOST, closed="both")


_POSITIVE = Interval(Real, 0, _LARGEST, closed="right")
_FROM_ZERO = Interval(Real, 0, _LARGEST, closed="both")
_ROWS = Interval(Integral, 1, _MOST_ROWS, closed="both")
_INNER_SHARE, _SHARE = Interval(Real, 0, 1, closed="neither"), Interval(Real, 0, 1, closed="both")
_PATH = [str, HasMethods("__fspath__")]
_LOSSES_OF_ROUNDS = {"squared_hinge", "log_loss", "softmax", "squared_error", *ROUND_LOSSES}

# The values that parameters take, by name, in every estimator that does not have others below; and None where that is
# the default.
USUAL: Constraints = {
    "C": [_POSITIVE],
    "Lam": [Interval(Real, 0, None, closed="right")],
    "alpha": [_POSITIVE, StrOptions(PENALTY_RULES.keys())],
    "bags": [_count(1)],
    "beta": [_FROM_ZERO],
    "bins": [Interval(Integral, 2, 255, closed="both")],
    "by_group": [str],
    "by_time": [str, Options(bool, {False})],
    "calibrate": ["boolean"],
    "categorical": [list, tuple],
    "categories": [StrOptions({"one-hot", "ordered"})],
    "center": [_FROM_ZERO],
    "chains": [_count(1)],
    "checkpoint": _PATH,
    "class_weight": [dict, StrOptions({"balanced"})],
    "conformal_fraction": [_INNER_SHARE],
    "cosine": [Interval(Real, 0, 1, closed="right")],
    "density_floor": [_FROM_ZERO],
    "depth": [Interval(Integral, 1, 3, closed="both")],
    "device": [StrOptions({"auto", "cpu", "gpu", "mixed"})],
    "diagonal": ["boolean"],
    "drop_missing_target": ["boolean"],
    "dtype": [StrOptions({"float32", "float64"})],
    "dynamics": [StrOptions({"no-regret", "excessive-gap"})],
    "early_stopping": ["boolean"],
    "effort": [StrOptions({"fast", "balanced", "best"})],
    "epochs": [_count(1)],
    "epsilon": [_POSITIVE],
    "estimator": [StrOptions({"auto", "draw", "support"})],
    "family": [HasMethods(["draw", "validate", "with_bandwidth", "feature_scale"])],
    # None is in machines that version 0.1 has saved; no fit takes it
    "features": [HasMethods(["fit", "transform"]), StrOptions({"auto", *learner_keys()}), list, tuple, None],
    "features_per_round": [_count(1)],
    "gamma": [_POSITIVE],
    "held_out": [Interval(Real, 0, 1, closed="left")],
    "k": [Interval(Real, 1, _LARGEST_POWER, closed="right")],
    "kernel": [HasMethods(["kernel", "validate", "with_bandwidth"])],
    "lam": [_POSITIVE],
    "landmarks": [StrOptions({"uniform", "kmeans", "leverage", "rpcholesky"})],
    "learning_rate": [_POSITIVE],
    "length_scale": [_POSITIVE],
    "linear": [HasMethods(["partial_fit"])],
    "max_norm": [_POSITIVE],
    "max_passes": [_count(1)],
    "max_rows": [_ROWS],
    "max_working": [_count(1)],
    "memory_limit": [str, Interval(Integral, 1, 2**63 - 1, closed="both")],
    "meta_kernel": [str, HasMethods(["gram", "validate"])],
    "method": [StrOptions({"langevin", "quasi-newton", "grid"})],
    "metric": [StrOptions({"diagonal", "full"})],
    "monotone": [dict],
    "mu": [_POSITIVE],
    "n_candidates": [_count(1)],
    "n_features": [_count(1)],
    "n_landmarks": [_count(1)],
    "n_rows": [_ROWS, Interval(RealNotInt, 0, 1, closed="right"), None],
    "noise": [_FROM_ZERO],
    "patience": [_count(1)],
    "plain_share": [_SHARE],
    "polish": [_count(0)],
    "pool": [StrOptions({"own", "shared"})],
    "progress": ["boolean", callable],
    "projection": [StrOptions({"exact", "alternating"})],
    "quantiles": [list, tuple],
    "random_state": ["random_state"],
    "reference_scale": [Interval(Real, 1e-100, _LARGEST, closed="both")],
    "refine": [_count(0), StrOptions({"auto"})],
    "rho": [_FROM_ZERO],
    "rounds": [_count(1)],
    "scaling": [StrOptions({"auto", "standard", "minmax", "unit", "quantile", "counts"}), None],
    "search_rows": [_ROWS],
    "searches": [_count(1)],
    "shared_density": ["boolean"],
    "sigma": [_POSITIVE, StrOptions({"auto", "median"})],
    "sigma_factor": [_POSITIVE],
    "sigma_factors": ["array-like"],
    "similarity": ["array-like", HasMethods(["__call__"])],
    "solver": [StrOptions({"sgd", "newton"})],
    "sparse_share": [_SHARE],
    "steps": [_count(1)],
    "stride": [_POSITIVE],
    "sums": _PATH,
    "time_limit": [_POSITIVE],
    "tol": [_POSITIVE],
    "trials": [list, tuple],
    "validation_fraction": [_INNER_SHARE],
    "warm_start": ["boolean"],
    "weighted": ["boolean"],
}

ALIGNED: Constraints = {"n_candidates": [_count(1), None], "n_features": [_count(1), None], "center": ["boolean"]}
JOINT: Constraints = {
    "n_candidates": [_count(1), None],
    "n_features": [_count(1), None],
    "k": [Interval(Real, 2, _LARGEST_POWER, closed="both")],
    "loss": [StrOptions(set(TUNED_LOSSES))],
}
LEVERAGE: Constraints = {"n_candidates": [_count(1), None]}
LANDMARKS: Constraints = {
    "n_candidates": [_count(1), None],
    "landmarks": [StrOptions({"kmeans", "kmeans-joint", "random"})],
    "rounds": [_count(0)],
}
MARGIN: Constraints = {
    "family": [*USUAL["family"], list, tuple],
    "n_features": [_count(1), StrOptions({"auto"})],
    "solver": [StrOptions({"corrective", "game"})],
    "loss": [StrOptions({"hinge", *_LOSSES_OF_ROUNDS})],
    "tol": [_FROM_ZERO],
}
STEPS: Constraints = {"loss": [StrOptions(_LOSSES_OF_ROUNDS)], "search_rows": [_ROWS, None]}
COMBINED: Constraints = {"features": [list, tuple], "n_features": [_count(2)]}
PEAKS: Constraints = {"plain_share": USUAL["held_out"]}
CLASSIFIER: Constraints = {
    "n_features": MARGIN["n_features"],
    "loss": [StrOptions(set(losses_for("classification")))],
}
REGRESSOR: Constraints = {
    "n_features": MARGIN["n_features"],
    "alpha": [*USUAL["alpha"], StrOptions({"evidence"})],
    "loss": [StrOptions(set(losses_for("regression")))],
    "epsilon": [_FROM_ZERO],
}
TUNED: Constraints = {"solver": [StrOptions({"full", "adam"})], "loss": JOINT["loss"]}
# losses of margins need labels
TUNED_REGRESSOR: Constraints = {
    **TUNED,
    "loss": [StrOptions({name for name, row in TUNED_LOSSES.items() if row.takes_one_pass})],
}


@cache
def constraints_of(kind: type[Constrained]) -> Constraints:
    """The constraint of each parameter of a class: its own, else the usual one, and None where that is the default."""
    known = USUAL | kind._parameter_constraints
    # scikit-learn's constraint of a random state allows None, too
    may_be_none = {
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if name != "random_state" and parameter.default is None and None not in known.get(name, [None])
    }
    return {name: [*values, None] if name in may_be_none else values for name, values in known.items()}


def check_parameters(estimator: OnFamily) -> None:
    """Raise an error that names the parameter, its value and what is expected, before any row is read."""
    check_constraints(estimator)
    if "family" in estimator.get_params(deep=False):
        family_of(estimator).validate()


def check_constraints(estimator: Constrained) -> None:
    """Raise an error for a parameter that violates its declaration.

    scikit-learn accepts a boolean as a number, a class as one of its instances (it has the methods), and blank text as
    a path; these are refused.
    """
    # refused here, since scikit-learn's own validation would accept them
    name, values = type(estimator).__name__, estimator.get_params(deep=False)
    constraints = constraints_of(type(estimator))
    for parameter, value in values.items():
        allowed = constraints.get(parameter, [])
        options = [option for each in allowed if isinstance(each, Options) for option in each.options]
        if isinstance(value, bool | np.bool_) and "boolean" not in allowed and value not in options:
            _refuse(name, parameter, value, "not be a truth value: it is a number, a text or None")
        if isinstance(value, type) and callable not in allowed:
            _refuse(name, parameter, value, f"be an instance, {value.__name__}(), not the class itself")
        if isinstance(value, ListedDictionary):
            listed = f"MarginFeatures(family=[{type(value).__name__}(...)])"
            _refuse(name, parameter, value, f"not be a dictionary outside a list: take {listed}")
        if isinstance(value, str) and not value.strip():
            _refuse(name, parameter, value, "not be empty; a parameter that may be left out is None")
        if isinstance(value, Integral) and abs(int(value)) >= 2**63 and parameter != "random_state":
            _refuse(name, parameter, value, "be a number of at most 64 bits")
    # the bounds overflow in half precision, and comparing with them would warn
    plain = {key: float(value) if isinstance(value, np.floating) else value for key, value in values.items()}
    validate_parameter_constraints(constraints, plain, caller_name=name)
    checked_limit(values.get("memory_limit"))
    if "sigma_factors" in values:
        bandwidth_factors(name, values["sigma_factors"])


def _refuse(name: str, parameter: str, value: object, must: str) -> None:
    """Raise scikit-learn's error for an invalid parameter."""
    raise InvalidParameterError(f"The {parameter!r} parameter of {name} must {must}. Got {value!r} instead.")


def family_of(estimator: OnFamily) -> Any:
    """The estimator's family; a list of families as one, and None as a Gaussian with the median bandwidth."""
    if isinstance(estimator.family, list | tuple):
        return Dictionaries.of(estimator.family)
    return Gaussian() if estimator.family is None else estimator.family


def family_parameters(family: object) -> dict[str, Any]:
    """The fields of a family that is a dataclass; empty for others."""
    if not dataclasses.is_dataclass(family):
        return {}
    return {field.name: getattr(family, field.name) for field in dataclasses.fields(family)}


def with_parameters(family: Any, parameters: Mapping[str, Any]) -> Any:
    """A copy of a family with some of its fields changed.

    Raises
    ------
    ValueError
        For a name that is not a field.
    """
    fields = family_parameters(family)
    unknown = [name for name in parameters if name not in fields]
    if unknown:
        raise ValueError(f"Invalid parameter {unknown[0]!r} for {family!r}. Valid parameters are: {sorted(fields)}")
    return dataclasses.replace(family, **parameters)


def drawn_seed(random_state: RandomState) -> int:
    """A seed below 2^31: an integer `random_state` itself, else drawn from the state."""
    # an integer is the seed itself, so that features do not depend on the machine or the version of NumPy
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def columns_a_frequency(family: Family) -> int:
    """Output columns of one frequency: two for a cosine-sine pair."""
    return family.with_bandwidth(1.0).draw(1, 2, 0).columns_a_frequency


def check_finite_pool(estimator: Estimator, family: Family) -> None:
    """Raise ValueError for n_candidates=None (each feature once) with an infinite family."""
    if estimator.get_params(deep=False)["n_candidates"] is None and not isinstance(family, FiniteFamily):
        raise ValueError(
            f"The 'n_candidates' parameter of {type(estimator).__name__} is None, each feature once, for finite "
            f"families only (Coordinates, SphericalHarmonics); it must be an int >= 1 for {family!r}"
        )


def check_waves(estimator: OnFamily) -> None:
    """Raise ValueError for a family whose features are not Fourier features, with a kernel cos(w.(x - x')) each."""
    family = family_of(estimator)
    if not family.with_bandwidth(1.0).draw(1, 2, 0).is_fourier:
        raise ValueError(
            f"{type(estimator).__name__} needs a family of Fourier features, whose kernel is cos(w.(x - x')); "
            f"{family!r} is none. Use Gaussian, Laplacian, Cauchy or Matern, or AlignedFeatures"
        )


def check_labels(estimator: Estimator, dataset: Dataset) -> None:
    """Raise ValueError for numeric targets."""
    if dataset.task != "classification":
        raise ValueError(
            f"{type(estimator).__name__} learns from class labels, and these targets are numbers (regression); use "
            "AlignedFeatures for regression"
        )


def kept_frequencies(name: str, n_features: int, family: Family) -> int:
    """The number of frequencies that fit into `n_features` output columns.

    Raises
    ------
    ValueError
        If none fits.
    """
    # A cosine-sine pair is one frequency and two columns.
    columns = columns_a_frequency(family)
    if n_features < columns:
        raise ValueError(
            f"The 'n_features' parameter of {name} counts output columns, and a cosine-sine pair takes two: it must be "
            f"at least {columns} for this family. Got {n_features!r} instead."
        )
    return n_features // columns


def bandwidth_factors(name: str, factors: object) -> tuple[float, ...]:
    """The factors as floats; raises ValueError unless there is at least one and all are positive and finite."""
    # anything but a sequence of numbers gets the same error as wrong numbers
    try:
        array = np.asarray(factors, dtype=np.float64)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim != 1 or len(array) == 0 or not (np.isfinite(array).all() and (array > 0.0).all()):
        raise ValueError(
            f"The 'sigma_factors' parameter of {name} must be a sequence of positive finite numbers. Got {factors!r} "
            "instead."
        )
    return tuple(float(factor) for factor in array)


def class_weights(class_weight: ClassWeight, classes: np.ndarray, totals: np.ndarray) -> np.ndarray | None:
    """The weight of each class, in the order of `classes`.

    Parameters
    ----------
    class_weight : dict of label to factor, "balanced" or None
        "balanced" is n / (K n_k), with n_k the total weight of the rows of class k.
    classes : ndarray of shape (K,)
    totals : ndarray of shape (K,)
        The total weight of the rows of each class.

    Raises
    ------
    ValueError
        For a label that is not a class, a weight that is negative or not finite, or weights that are all 0.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str):
        # n / (K n_k); a class without rows gets 0
        return totals.sum() / (len(classes) * np.maximum(totals, np.finfo(np.float64).tiny)) * (totals > 0.0)
    factors = np.ones(len(classes))
    for label, factor in class_weight.items():
        # a misspelt label would have no effect
        position = np.flatnonzero(classes == label)
        if len(position) != 1:
            raise ValueError(f"class_weight names the class {label!r}, but the classes are {classes.tolist()}")
        if not (isinstance(factor, Real) and 0.0 <= float(factor) <= _LARGEST_FACTOR):
            raise ValueError(
                f"class_weight[{label!r}] must be a finite number >= 0, got {factor!r}; the largest is "
                f"{_LARGEST_FACTOR:g}"
            )
        factors[position[0]] = factor
    if not factors.any():
        raise ValueError("class_weight is 0 for every class; at least one class must count")
    return factors


def weight_of(dataset: Dataset, class_weight: np.ndarray | None) -> float:
    """The total weight of the rows, each times the weight (K,) of its class."""
    return dataset.total_weight if class_weight is None else float(class_weight @ np.asarray(dataset.class_weights))


def check_quantiles(quantiles: Sequence[float]) -> None:
    """Raise ValueError unless the quantiles are distinct numbers between 0 and 1."""
    numbers = [float(value) for value in quantiles if isinstance(value, Real) and 0.0 < value < 1.0]
    if not numbers or len(numbers) < len(quantiles) or len(set(numbers)) < len(numbers):
        raise ValueError(
            f"quantiles is {quantiles!r}; expected different numbers between 0 and 1, such as (0.1, 0.5, 0.9)"
        )

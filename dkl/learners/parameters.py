"""What the learners' parameters may be, declared once: the one module that imports scikit-learn's validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import (
    HasMethods,
    Interval,
    RealNotInt,
    StrOptions,
    validate_parameter_constraints,
)

from dkl.features.families import FiniteFamily, Gaussian

Constraints = dict[str, list[Any]]

COMMON: Constraints = {
    "family": [HasMethods(["draw", "validate", "with_bandwidth", "feature_scale"]), None],
    "n_features": [Interval(Integral, 1, None, closed="left")],
    "scaling": [StrOptions({"standard", "minmax", "unit", "quantile"}), None],
    "max_rows": [Interval(Integral, 1, None, closed="left"), None],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "dtype": [StrOptions({"float32", "float64"})],
    "device": [StrOptions({"auto", "cpu", "gpu", "mixed"})],
    "random_state": ["random_state"],
    "checkpoint": [str, HasMethods("__fspath__"), None],
    "progress": ["boolean", callable, None],
    "memory_limit": [str, Interval(Integral, 1, None, closed="left"), None],
}

POOL: Constraints = {
    "n_candidates": [Interval(Integral, 1, None, closed="left")],
    "sigma_factors": ["array-like"],
}

ALIGNMENT: Constraints = {
    "n_candidates": [Interval(Integral, 1, None, closed="left"), None],
    "n_features": [Interval(Integral, 1, None, closed="left"), None],
    "rho": [Interval(Real, 0, None, closed="left"), None],
    "sums": [str, HasMethods("__fspath__"), None],
    "k": [Interval(Real, 2, None, closed="left")],
    "center": ["boolean"],
    "diagonal": ["boolean"],
    "estimator": [StrOptions({"auto", "draw", "support"})],
}

JOINT: Constraints = {
    **{name: ALIGNMENT[name] for name in ("n_candidates", "n_features", "rho", "k")},
    "C": [Interval(Real, 0, None, closed="neither")],
    "loss": [StrOptions({"hinge", "squared_hinge", "squared_error"}), None],
    "tol": [Interval(Real, 0, None, closed="neither")],
    "max_passes": [Interval(Integral, 1, None, closed="left")],
    "max_working": [Interval(Integral, 1, None, closed="left"), None],
    "warm_start": ["boolean"],
}

POSTERIOR: Constraints = {
    "sums": [str, HasMethods("__fspath__"), None],
    "beta": [Interval(Real, 0, None, closed="left")],
    "estimator": [StrOptions({"auto", "draw", "support"})],
}

LEVERAGE: Constraints = {
    "n_candidates": [Interval(Integral, 1, None, closed="left"), None],
    "mu": [Interval(Real, 0, None, closed="neither")],
    "n_rows": [Interval(Integral, 1, None, closed="left"), Interval(RealNotInt, 0, 1, closed="right"), None],
    "sums": ALIGNMENT["sums"],
    "weighted": ["boolean"],
}

LANDMARKS: Constraints = {
    "n_landmarks": [Interval(Integral, 1, None, closed="left")],
    "beta": POSTERIOR["beta"],
    "sums": POSTERIOR["sums"],
    "landmarks": [StrOptions({"kmeans", "kmeans-joint", "random"})],
    "n_candidates": ALIGNMENT["n_candidates"],
    "pool": [StrOptions({"own", "shared"})],
    "rounds": [Interval(Integral, 0, None, closed="left")],
}

MARGIN: Constraints = {
    "n_features": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    "solver": [StrOptions({"corrective", "game"})],
    "loss": [StrOptions({"hinge", "squared_hinge", "log_loss", "squared_error"}), None],
    "C": [Interval(Real, 0, None, closed="neither"), None],
    "rounds": [Interval(Integral, 1, None, closed="left"), None],
    "features_per_round": [Interval(Integral, 1, None, closed="left"), None],
    "tol": [Interval(Real, 0, None, closed="left"), None],
    "patience": [Interval(Integral, 1, None, closed="left"), None],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "chains": [Interval(Integral, 1, None, closed="left"), None],
    "steps": [Interval(Integral, 1, None, closed="left"), None],
    "stride": [Interval(Real, 0, None, closed="neither"), None],
    "noise": [Interval(Real, 0, None, closed="left"), None],
    "sparse_share": [Interval(Real, 0, 1, closed="both")],
    "plain_share": [Interval(Real, 0, 1, closed="both"), None],
    "search_rows": [Interval(Integral, 1, None, closed="left"), None],
    "max_norm": [Interval(Real, 0, None, closed="neither"), None],
    "projection": [StrOptions({"exact", "alternating"})],
    "dynamics": [StrOptions({"no-regret", "excessive-gap"})],
    "refine": [Interval(Integral, 0, None, closed="left")],
    "warm_start": ["boolean"],
}

PEAKS: Constraints = {
    **COMMON,
    **{name: MARGIN[name] for name in ("chains", "sparse_share", "search_rows", "max_norm", "warm_start")},
    "method": [StrOptions({"langevin", "quasi-newton", "grid"})],
    "tol": [Interval(Real, 0, None, closed="neither")],
    "steps": [Interval(Integral, 1, None, closed="left")],
    "stride": [Interval(Real, 0, None, closed="neither")],
    "noise": [Interval(Real, 0, None, closed="left")],
    "polish": [Interval(Integral, 0, None, closed="left")],
    "held_out": [Interval(Real, 0, 1, closed="left")],
    "plain_share": [Interval(Real, 0, 1, closed="left")],
    "cosine": [Interval(Real, 0, 1, closed="right")],
}

MACHINE: Constraints = {
    "features": [
        HasMethods(["fit", "transform"]),
        StrOptions({"random", "aligned", "posterior", "landmarks", "leverage", "peaks", "margin", "joint"}),
        None,
    ],
    "alpha": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    "epochs": [Interval(Integral, 1, None, closed="left"), None],
    "solver": [StrOptions({"sgd", "newton"})],
    "early_stopping": ["boolean"],
    "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
    "patience": [Interval(Integral, 1, None, closed="left")],
    **{name: COMMON[name] for name in ("device", "random_state", "checkpoint", "progress", "memory_limit")},
}

CLASSIFIER: Constraints = {
    **MACHINE,
    "loss": [StrOptions({"hinge", "squared_hinge", "log_loss", "modified_huber"})],
    "class_weight": COMMON["class_weight"],
    "calibrate": ["boolean"],
}

REGRESSOR: Constraints = {
    **MACHINE,
    "loss": [StrOptions({"squared_error", "epsilon_insensitive", "huber"})],
    "epsilon": [Interval(Real, 0, None, closed="left")],
}

_POSITIVE = Interval(Real, 0, None, closed="neither")
_FROM_ZERO = Interval(Real, 0, None, closed="left")

TUNED: Constraints = {
    "sums": ALIGNMENT["sums"],
    **{name: constraint for name, constraint in COMMON.items() if name != "class_weight"},
    "reference_scale": [_POSITIVE, None],
    "lam": [_POSITIVE],
    "Lam": [Interval(Real, 0, None, closed="right")],
    "gamma": [_POSITIVE],
    "meta_kernel": [str, HasMethods(["gram", "validate"])],
    "length_scale": [_POSITIVE, None],
    "density_floor": [_FROM_ZERO],
    "center": [_FROM_ZERO],
    "shared_density": ["boolean"],
    "solver": [StrOptions({"full", "adam"})],
    "tol": [_POSITIVE],
    "max_passes": [Interval(Integral, 1, None, closed="left")],
    "learning_rate": [_POSITIVE],
    **{name: MACHINE[name] for name in ("epochs", "early_stopping", "validation_fraction", "patience")},
}

TUNED_CLASSIFIER: Constraints = {
    **TUNED,
    "loss": [StrOptions({"hinge", "squared_hinge", "squared_error"})],
    "warm_start": ["boolean"],
    "class_weight": COMMON["class_weight"],
}

TUNED_REGRESSOR: Constraints = {**TUNED, "loss": [StrOptions({"squared_error"})]}


def check_parameters(estimator: Any) -> None:
    """Raise an error that names the parameter, its value and what is expected, before any row is read."""
    check_constraints(estimator)
    family_of(estimator).validate()


def check_constraints(estimator: Any) -> None:
    """Raise an error for a parameter that does not keep to its declaration."""
    validate_parameter_constraints(
        estimator._parameter_constraints, estimator.get_params(deep=False), caller_name=type(estimator).__name__
    )


def family_of(estimator: Any) -> Any:
    """The family that was given, or a Gaussian with the median bandwidth."""
    return Gaussian() if estimator.family is None else estimator.family


def family_parameters(family: Any) -> dict[str, Any]:
    """The fields of a family that is a dataclass; none of others."""
    fields = dataclasses.fields(family) if dataclasses.is_dataclass(family) else ()
    return {field.name: getattr(family, field.name) for field in fields}


def with_parameters(family: Any, parameters: Mapping[str, Any]) -> Any:
    """A copy of a family with some of its fields changed.

    Raises
    ------
    ValueError
        For a name that is none of its fields.
    """
    known = family_parameters(family)
    unknown = [name for name in parameters if name not in known]
    if unknown:
        raise ValueError(f"Invalid parameter {unknown[0]!r} for {family!r}. Valid parameters are: {sorted(known)}")
    return dataclasses.replace(family, **parameters)


def drawn_seed(random_state: Any) -> int:
    """A seed below 2^31: the number itself if it is one, else drawn from the state."""
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))


def columns_a_frequency(family: Any) -> int:
    """Output columns of one frequency: two for a cosine-sine pair."""
    return family.with_bandwidth(1.0).draw(1, 2, 0).columns_a_frequency


def check_finite_pool(estimator: Any, family: Any) -> None:
    """Raise ValueError where each feature of a family is asked for once, and it has no end of them."""
    if estimator.n_candidates is None and not isinstance(family, FiniteFamily):
        raise ValueError(
            f"The 'n_candidates' parameter of {type(estimator).__name__} is None, each feature once, for finite "
            f"families only (Coordinates, SphericalHarmonics); it must be an int >= 1 for {family!r}"
        )


def check_waves(name: str, family: Any) -> None:
    """Raise ValueError for a family whose features are no waves, each with a kernel cos(w.(x - x')) of its own."""
    if not family.with_bandwidth(1.0).draw(1, 2, 0).is_fourier:
        raise ValueError(
            f"{name} needs a family of Fourier features, whose kernel is cos(w.(x - x')); {family!r} is none. Use "
            "Gaussian, Laplacian, Cauchy or Matern, or AlignedFeatures"
        )


def check_labels(name: str, dataset: Any) -> None:
    """Raise ValueError for targets that are numbers."""
    if dataset.task != "classification":
        raise ValueError(
            f"{name} learns from class labels, and these targets are numbers (regression); use AlignedFeatures for "
            "regression"
        )


def kept_frequencies(name: str, n_features: int, family: Any) -> int:
    """How many frequencies fit into `n_features` output columns.

    Raises
    ------
    ValueError
        If not even one does.
    """
    columns = columns_a_frequency(family)
    if n_features < columns:
        raise ValueError(
            f"The 'n_features' parameter of {name} counts output columns, and a cosine-sine pair takes two: it must be "
            f"at least {columns} for this family. Got {n_features!r} instead."
        )
    return n_features // columns


def bandwidth_factors(name: str, factors: Any) -> tuple[float, ...]:
    """The factors as numbers, if all of them are positive and finite and there is at least one."""
    array = np.asarray(factors, dtype=np.float64)
    if array.ndim != 1 or len(array) == 0 or not (np.isfinite(array).all() and (array > 0.0).all()):
        raise ValueError(
            f"The 'sigma_factors' parameter of {name} must be a sequence of positive finite numbers. Got {factors!r} "
            "instead."
        )
    return tuple(float(factor) for factor in array)


def class_weights(class_weight: Any, classes: np.ndarray, totals: np.ndarray) -> np.ndarray | None:
    """A factor for each class, in the order of `classes`.

    Parameters
    ----------
    class_weight : dict of label to factor, "balanced" or None
        "balanced": n / (K n_k), n_k the weight of class k.
    classes : ndarray of shape (K,)
    totals : ndarray of shape (K,)
        The weight of each class.

    Raises
    ------
    ValueError
        For a label that is not a class, a factor that is negative or not finite, or factors that are all 0.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str):
        return totals.sum() / (len(classes) * np.maximum(totals, np.finfo(np.float64).tiny)) * (totals > 0.0)
    factors = np.ones(len(classes))
    for label, factor in class_weight.items():
        position = np.flatnonzero(classes == label)
        if len(position) != 1:
            raise ValueError(f"class_weight names the class {label!r}, but the classes are {classes.tolist()}")
        if not (isinstance(factor, Real) and 0.0 <= float(factor) < np.inf):
            raise ValueError(f"class_weight[{label!r}] must be a finite number >= 0, got {factor!r}")
        factors[position[0]] = factor
    if not factors.any():
        raise ValueError("class_weight is 0 for every class; at least one class must count")
    return factors

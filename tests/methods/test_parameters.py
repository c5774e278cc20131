"""Every parameter of every learner: a value without a meaning is an error that names it, before any work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import dkl

LEARNERS = (
    "RandomFeatures",
    "AlignedFeatures",
    "PosteriorFeatures",
    "LeverageFeatures",
    "LandmarkFeatures",
    "MarginFeatures",
    "JointFeatures",
    "PeakFeatures",
    "TunedClassifier",
    "TunedRegressor",
    "KernelClassifier",
    "KernelRegressor",
)
PARAMETERS = {name: sorted(getattr(dkl, name)().get_params(deep=False)) for name in LEARNERS}
# values that mean nothing anywhere, and the parameters that have a use for them all the same
NEVER: dict[str, tuple[Any, set[str]]] = {
    "a class": (dkl.Gaussian, {"progress"}),
    "an object": (object(), set()),
    "a function": (lambda event: None, {"progress", "similarity"}),
    "a complex number": (1 + 1j, set()),
    "bytes": (b"auto", set()),
    "NaN": (float("nan"), set()),
    "-1": (-1, set()),
    "more than 64 bits": (2**70, set()),
    "no text": ("", set()),
    "a word": ("bogus", {"checkpoint", "sums"}),
    "a dict": ({}, {"class_weight"}),
    "a negative share": (-0.5, set()),
    "minus infinity": (-float("inf"), set()),
    "two numbers": (np.array([0.5, 0.5]), {"sigma_factors"}),
}
# values that have a meaning for some parameters: an error names the parameter here too
SOMETIMES: tuple[Any, ...] = (
    *(None, 0, 1, 5.0, True, False, np.int64(5), np.float32(0.5), np.bool_(True), "5", "auto", 1e308, 2**40),
    *(float("inf"), [], [1], (), "cpu", np.ones((2, 2)), dkl.Gaussian(1.0), dkl.RandomFeatures()),
)


class ReadError(Exception):
    """The rows were asked for."""


class Unread:
    """Rows that tell when they are read."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise ReadError


def kind_of(name: str) -> str:
    return "Features" if name.endswith("Features") else name.removesuffix("Classifier").removesuffix("Regressor")


def tried(values: Iterable[Any], name: str, parameter: str) -> list[Any]:
    """All values for the first of the learners of a kind that have the parameter; a fifth of them for each other one.

    They declare it in one place for the most part. Each begins with another value, so that several meet all.
    """
    having = [other for other in LEARNERS if kind_of(other) == kind_of(name) and parameter in PARAMETERS[other]]
    place = having.index(name)
    return [*values] if place == 0 else [*values][place % 5 :: 5]


def error_of(name: str, parameter: str, value: Any) -> Exception | None:
    """The error that `fit` ends with before it reads a row; None where it comes to read them."""
    try:
        getattr(dkl, name)(**{parameter: value}).fit(Unread(), np.arange(2))
    except ReadError:
        return None
    except Exception as error:
        return error
    raise AssertionError(f"{name}({parameter}={value!r}).fit read no rows")


@pytest.mark.parametrize("name", LEARNERS)
def test_a_value_without_meaning_is_refused_by_its_name_before_any_row_is_read(name: str) -> None:
    for parameter in PARAMETERS[name]:
        for what, (value, useful) in tried(NEVER.items(), name, parameter):
            if parameter in useful:
                continue
            error = error_of(name, parameter, value)
            assert isinstance(error, ValueError | TypeError), f"{what} was taken for {parameter}"
            assert parameter in str(error), f"{parameter}, {what}: {error}"


@pytest.mark.parametrize("name", LEARNERS)
def test_any_other_value_is_taken_or_refused_by_its_name(name: str) -> None:
    for parameter in PARAMETERS[name]:
        for value in tried(SOMETIMES, name, parameter):
            error = error_of(name, parameter, value)
            # no fit keeps to a limit of one byte
            if error is not None and not (parameter == "memory_limit" and isinstance(error, MemoryError)):
                assert isinstance(error, ValueError | TypeError), f"{parameter}={value!r}: {error!r}"
                assert parameter in str(error), f"{parameter}={value!r}: {error}"


@pytest.mark.parametrize("name", LEARNERS)
def test_truth_values_are_no_numbers_and_numpy_scalars_are(name: str) -> None:
    seeds = {True: error_of(name, "random_state", True), 5: error_of(name, "random_state", np.int64(5))}
    assert "random_state" in str(seeds[True])
    assert seeds[5] is None

"""Atomic fits: what a method learns replaces what its model knew all at once, in the end, or not at all."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
M = TypeVar("M")


def atomic(method: Callable[Concatenate[M, P], M]) -> Callable[Concatenate[M, P], M]:
    """A method such as `fit` that leaves its model as it was, whole, however it is stopped.

    The method works on a shallow copy, whose attributes the model takes over when it has returned. Until then, and
    after any exception (a `KeyboardInterrupt` too), the model has the attributes of its last fit, or none. The method
    must not change objects in place that the model held before: it copies these first.

    Parameters
    ----------
    method : callable
        Of a model; returns the model.

    Examples
    --------
    >>> class Model:
    ...     @atomic
    ...     def fit(self, scale):
    ...         self.scale_ = scale
    ...         self.inverse_ = 1 / scale
    ...         return self
    >>> model = Model().fit(4)
    >>> try:
    ...     model.fit(0)
    ... except ZeroDivisionError:
    ...     model.scale_, model.inverse_
    (4, 0.25)
    """

    @functools.wraps(method)
    def run(self: M, /, *given: P.args, **named: P.kwargs) -> M:
        working = copy.copy(self)
        method(working, *given, **named)
        # one assignment, which no signal and no other thread can see half of
        self.__dict__ = vars(working)
        return self

    return run


def forget_fit(model: Any) -> None:
    """Take away what an earlier fit has left, so that nothing of it stands beside what the next one finds."""
    for name in [name for name in vars(model) if name.endswith("_") and not name.startswith("__")]:
        delattr(model, name)

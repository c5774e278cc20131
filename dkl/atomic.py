"""Atomic fits: what a method learns replaces what its model knew all at once, in the end, or not at all."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

M = TypeVar("M")


@contextmanager
def atomic(model: M) -> Iterator[M]:
    """A shallow copy to work on, whose attributes the model takes over when the block has ended.

    Until then, and after any exception (a `KeyboardInterrupt` too), the model has the attributes of its last fit, or
    none. The block must not change objects in place that the model held before: it copies these first.

    Examples
    --------
    >>> class Model:
    ...     def fit(self, scale):
    ...         with atomic(self) as working:
    ...             working.scale_ = scale
    ...             working.inverse_ = 1 / scale
    ...         return self
    >>> model = Model().fit(4)
    >>> try:
    ...     model.fit(0)
    ... except ZeroDivisionError:
    ...     model.scale_, model.inverse_
    (4, 0.25)
    """
    working = copy.copy(model)
    yield working
    # one assignment, which no signal and no other thread can see half of
    model.__dict__ = vars(working)


def forget_fit(model: Any) -> None:
    """Take away what an earlier fit has left, so that nothing of it stands beside what the next one finds."""
    for name in [name for name in vars(model) if name.endswith("_") and not name.startswith("__")]:
        delattr(model, name)

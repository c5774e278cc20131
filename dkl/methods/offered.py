"""Methods that an estimator has under some settings only, and says which where it has not."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any


def offered_unless(reason: Callable[[Any], str | None]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator as scikit-learn's `available_if`, whose AttributeError says what the method needs.

    Parameters
    ----------
    reason : callable
        Takes the estimator to a sentence that says why it has no such method, or to None where it has.
    """
    return lambda function: _Offered(function, reason)


class _Offered:
    """The descriptor of such a method."""

    def __init__(self, function: Callable[..., Any], reason: Callable[[Any], str | None]) -> None:
        wrapper: Any = self
        update_wrapper(wrapper, function)
        self._function, self._reason = function, reason

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self._function
        if (reason := self._reason(instance)) is not None:
            raise AttributeError(f"{owner.__name__!r} has no attribute {self._function.__name__!r}: {reason}")
        return MethodType(self._function, instance)

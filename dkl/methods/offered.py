"""Methods that an estimator has only under some settings; if it lacks one, the error gives the reason."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from types import MethodType
from typing import Any


def offered_unless(reason: Callable[[Any], str | None]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator like scikit-learn's `available_if`, whose AttributeError gives the reason.

    Parameters
    ----------
    reason : callable
        Maps the estimator to a sentence on why it lacks the method, or to None if it has it.
    """
    return lambda function: _Offered(function, reason)


class _Offered:
    """The descriptor of a method with a condition."""

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

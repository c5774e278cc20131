"""scikit-learn's callbacks hear the passes and rounds of a fit, and can end its rounds."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from dkl.events import Event, StopRequested
from dkl.progress import listening

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # before scikit-learn 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Estimators of an older scikit-learn have no `set_callbacks`; `progress=` hears the same."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """The method itself."""
        return method


__all__ = ["CallbackSupportMixin", "calls_back"]

P = ParamSpec("P")
M = TypeVar("M")


def calls_back(fit: Callable[Concatenate[M, P], M]) -> Callable[Concatenate[M, P], M]:
    """A `fit` whose callbacks, those of ``set_callbacks``, hear of it."""

    plain: Callable[..., Any] = fit

    @functools.wraps(fit)
    def run(self: Any, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
        with _called_back(self, X, y):
            return plain(self, X, y, sample_weight)

    return with_callbacks(run)


@contextmanager
def _called_back(estimator: Any, X: Any, y: Any) -> Iterator[None]:
    """A fit whose callbacks hear of every pass as a task, and of the whole; they score the fitted model at its end."""
    if not getattr(estimator, "_skl_callbacks", None):
        yield
        return
    context = estimator._init_callback_context(max_subtasks=None)
    context.call_on_fit_task_begin(estimator=estimator, X=X, y=y)
    with listening(_Tasks(estimator, context)):
        yield
    attributes = {name: value for name, value in vars(estimator).items() if name.endswith("_")}
    context.call_on_fit_task_end(estimator=estimator, X=X, y=y, reconstruction_attributes=attributes)


class _Tasks:
    """Turns events into tasks: a pass, with its round where it belongs to one."""

    def __init__(self, estimator: Any, context: Any) -> None:
        self._estimator = estimator
        self._fit = context
        self._task: Any = None
        self._in_rounds = False

    def __call__(self, event: Event) -> None:
        if event.name == "rounds":
            self._in_rounds = event.kind != "finished"
            if event.kind == "advanced" and self._ended(dict(event.detail)):
                raise StopRequested("a callback ended the rounds")
        elif event.kind == "started":
            self._task = self._fit.subcontext(task_name=event.name)
            self._task.call_on_fit_task_begin(estimator=self._estimator)
        elif event.kind == "finished" and not self._in_rounds:
            self._ended({})

    def _ended(self, figures: dict[str, Any]) -> bool:
        if self._task is None:
            return False
        task, self._task = self._task, None
        return bool(task.call_on_fit_task_end(estimator=self._estimator, metadata=figures))

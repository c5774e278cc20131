"""scikit-learn's callbacks hear the passes and rounds of a fit, see the model so far, and can end the rounds."""

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
    def run(self: Any, X: Any, y: Any = None, sample_weight: Any = None, **beside: Any) -> Any:
        with _called_back(self, X, y, sample_weight):
            return plain(self, X, y, sample_weight, **beside)

    return with_callbacks(run)


@contextmanager
def _called_back(estimator: Any, X: Any, y: Any, sample_weight: Any) -> Iterator[None]:
    """A fit whose callbacks hear of every pass as a task, and of the whole; they may score the model of each round."""
    if not getattr(estimator, "_skl_callbacks", None):
        yield
        return
    # what scorers take beside rows and targets
    metadata = None if sample_weight is None else {"sample_weight": sample_weight}
    told = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
    context = estimator._init_callback_context(max_subtasks=None)
    context.figures = {}
    context.call_on_fit_task_begin(**told)
    with listening(_Tasks(context, told)):
        yield
    context.call_on_fit_task_end(**told, reconstruction_attributes=_fitted_attributes(estimator))


class _Tasks:
    """Turns events into tasks: a pass, with its round where it belongs to one, whose figures its context has."""

    def __init__(self, context: Any, told: dict[str, Any]) -> None:
        self._fit = context
        self._told = told
        self._task: Any = None
        self._in_rounds = False

    def __call__(self, event: Event) -> None:
        if event.name == "rounds":
            self._in_rounds = event.kind != "finished"
            if event.kind == "advanced" and self._ended(event):
                raise StopRequested("a callback ended the rounds")
        elif event.kind == "started":
            self._task = self._fit.subcontext(task_name=event.name)
            self._task.figures = {}
            self._task.call_on_fit_task_begin(estimator=self._told["estimator"])
        elif event.kind == "finished" and not self._in_rounds:
            self._ended(event)

    def _ended(self, event: Event) -> bool:
        if self._task is None:
            return False
        task, self._task = self._task, None
        if event.model is None:
            return bool(task.call_on_fit_task_end(estimator=self._told["estimator"]))
        task.figures = dict(event.detail)
        look = functools.partial(_model_so_far, self._told["estimator"], event.model)
        return bool(task.call_on_fit_task_end(**self._told, reconstruction_attributes=look))


def _model_so_far(estimator: Any, model: Callable[[], Any]) -> dict[str, Any] | None:
    """What an estimator would have learned if its rounds ended here; None where it could not predict yet."""
    found = model()
    if isinstance(found, type(estimator)):
        return _fitted_attributes(found)
    # features of a machine: their working model predicts, and knows no probabilities
    working = None if hasattr(estimator, "predict_proba") else getattr(found, "machine_", None)
    return None if working is None else _fitted_attributes(working)


def _fitted_attributes(estimator: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(estimator).items() if name.endswith("_")}

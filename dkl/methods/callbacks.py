"""Reports passes and rounds of a fit to scikit-learn's callbacks, which may read the model and end the rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dkl.data.frames import weights_of
from dkl.events import Event, StopRequested
from dkl.progress import listening

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # before scikit-learn 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """A stand-in for scikit-learn versions without `set_callbacks`; `progress=` receives the same events."""

    def with_callbacks(method: Callable[..., Any]) -> Callable[..., Any]:
        """Returns the method unchanged."""
        return method


__all__ = ["CallbackSupportMixin", "called_back"]

# scikit-learn's decorator calls `teardown` of the callbacks after the decorated function
_tear_down: Callable[[Any], None] = with_callbacks(lambda estimator: None)


@contextmanager
def called_back(estimator: Any, X: object, y: object, sample_weight: object) -> Iterator[None]:
    """Report a fit, and every pass in it as a task, to the callbacks of ``set_callbacks``.

    Callbacks may score the model of each round, and end the rounds.
    """
    if not getattr(estimator, "_skl_callbacks", None):
        yield
        return
    # scorers receive the weights of the rows as metadata
    metadata = None if sample_weight is None else {"sample_weight": weights_of(X, sample_weight)}
    fit_of = {"estimator": estimator, "X": X, "y": y, "metadata": metadata}
    try:
        context = estimator._init_callback_context(max_subtasks=None)
        context.figures = {}
        context.call_on_fit_task_begin(**fit_of)
        with listening(_Tasks(context, fit_of)):
            yield
        context.call_on_fit_task_end(**fit_of, reconstruction_attributes=_fitted_attributes(estimator))
    finally:
        _tear_down(estimator)


class _Tasks:
    """Turns events into scikit-learn's tasks.

    A task is one pass. Within the rounds of a driver a task ends with the round, has the round's metrics in
    `context.figures`, and provides the unfinished model.

    Parameters
    ----------
    context : sklearn.callback.CallbackContext
        The context of the whole fit.
    fit_of : dict
        "estimator", "X", "y" and "metadata", the arguments of callbacks.
    """

    def __init__(self, context: Any, fit_of: dict[str, Any]) -> None:
        self._fit = context
        self._fit_of = fit_of
        self._task: Any = None
        self._in_rounds = False

    def __call__(self, event: Event) -> None:
        if event.name == "rounds":
            self._in_rounds = event.kind != "finished"
            if event.kind == "advanced" and self._end_task(event):
                raise StopRequested("a callback ended the rounds")
        elif event.name == "choice":
            return  # its trials consist of passes, which are the tasks
        elif event.kind == "started":
            self._task = self._fit.subcontext(task_name=event.name)
            self._task.figures = {}
            self._task.call_on_fit_task_begin(estimator=self._fit_of["estimator"])
        elif event.kind == "finished" and not self._in_rounds:
            # within rounds a task ends after the round has advanced, since only then is there a model
            self._end_task(event)

    def _end_task(self, event: Event) -> bool:
        """Report the end of the current pass to the callbacks; returns whether one of them ends the fit."""
        if self._task is None:
            return False
        task, self._task = self._task, None
        if event.model is None:
            return bool(task.call_on_fit_task_end(estimator=self._fit_of["estimator"]))
        task.figures, model_so_far = dict(event.detail), event.model

        def attributes() -> dict[str, Any] | None:
            """The fitted attributes if the rounds ended here; None before there is a model."""
            estimator, model = self._fit_of["estimator"], model_so_far()
            if isinstance(model, type(estimator)):
                return _fitted_attributes(model)
            # the features of a machine are unfinished; their own model predicts, but has no probabilities
            working = None if hasattr(estimator, "predict_proba") else getattr(model, "machine_", None)
            return None if working is None else _fitted_attributes(working)

        return bool(task.call_on_fit_task_end(**self._fit_of, reconstruction_attributes=attributes))


def _fitted_attributes(estimator: object) -> dict[str, Any]:
    """The fitted attributes: by scikit-learn's convention, those whose names end in an underscore."""
    return {name: value for name, value in vars(estimator).items() if name.endswith("_")}

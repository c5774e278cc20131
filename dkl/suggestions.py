"""suggest: an estimator for the rows at hand, with the reason for each of its settings in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from textwrap import fill
from typing import Any

from sklearn.base import clone

from dkl.data.checks import whole_number
from dkl.data.coerce import as_dataset
from dkl.data.labels import TaskChoice
from dkl.data.together.rows import BesideFeatures
from dkl.data.together.telling import warn_of_random_folds
from dkl.encodings.categories import with_categories
from dkl.linear.fitting import Run
from dkl.linear.minibatches import HeldOut
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.machines.suggest import Advice, advise
from dkl.progress import Choice, resolve_progress


@dataclass(frozen=True)
class Suggestion:
    """An estimator and why it; print it.

    Parameters
    ----------
    rows : str
        What it is for.
    advice : Advice
    task : str or None
    seed : int
    columns : mapping of str to str
        The columns of a data frame that the machine holds rows out by: by_group or by_time.
    """

    rows: str
    advice: Advice
    task: str | None
    seed: int
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reasons(self) -> tuple[str, ...]:
        """One sentence a choice."""
        return self.advice.reasons

    @property
    def features(self) -> Any:
        """A new feature learner, not fitted."""
        # A suggestion is asked for its estimator again and again; each answer is a new one, so that no fit changes
        # another.
        return clone(self.advice.features).set_params(random_state=self.seed)

    @property
    def estimator(self) -> Any:
        """A new kernel machine, not fitted; the feature learner alone for rows without a target."""
        if self.task is None:
            return self.features
        machine = KernelClassifier if self.task == "classification" else KernelRegressor
        settings: dict[str, Any] = {**self.advice.machine, **self.columns}
        return machine(self.features, random_state=self.seed, **settings)

    def __repr__(self) -> str:
        lines = [fill(reason, 100, subsequent_indent="    ") for reason in self.reasons]
        return "\n".join([f"for {self.rows}", *lines, repr(self.estimator)])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


def suggest(
    data: object,
    y: object = None,
    *,
    groups: Any = None,
    times: Any = None,
    task: TaskChoice = "auto",
    random_state: int = 0,
    progress: Choice = None,
    memory_limit: int | str | None = None,
) -> Suggestion:
    """Scaling, kernel, bandwidth, learner and number of features for these rows, each with its reason.

    Reads the rows once for a sample and their moments. A thousand sampled rows then judge each choice: every one of
    them is predicted by a kernel machine on the others, and the usual choice stays unless another one is better by two
    standard errors.

    Parameters
    ----------
    data : Dataset, or rows as `fit` takes them
        The rows to be fitted: ``ds["train"]``.
    y : array of shape (n,) or None
        Targets of rows that are no Dataset.
    groups, times : str, array of shape (n,), or None
        As of `KernelClassifier.fit`; the estimator holds rows out by a column that is named.
    task : {"auto", "classification", "regression"}
        What y is, where it is not a Dataset's own.
    random_state : int
        Of the sample, and of the estimator.
    progress : bool, callable or None
    memory_limit : int, str or None
        Bytes that a process may use.

    Returns
    -------
    Suggestion
        ``suggestion.estimator.fit(data)``.

    Raises
    ------
    ValueError
        If the rows are not what a Dataset can hold.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> import dkl
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> suggestion = dkl.suggest(X, y)
    >>> type(suggestion.estimator).__name__, suggestion.reasons[0].startswith("Rows: 569 of 2 classes")
    ('KernelClassifier', True)
    """
    # A generator would give another answer for the same call, and a suggestion is to be looked up again.
    random_state = whole_number(random_state, "random_state")
    # Rows of a Dataset are not copied, and all others become one here.
    beside = BesideFeatures(data, groups, times)
    dataset = beside.held(as_dataset(beside.X, y, task=task))
    warn_of_random_folds(dataset, "suggest")
    run = Run(publish=resolve_progress(progress), memory_limit=memory_limit)
    numbered = with_categories(dataset, HeldOut(0.1, random_state), run)
    named = {"by_group": groups, "by_time": times if groups is None else None}
    columns = {name: given for name, given in named.items() if isinstance(given, str) and dataset.task is not None}
    return Suggestion(repr(dataset), advise(numbered, run, random_state), dataset.task, random_state, columns)

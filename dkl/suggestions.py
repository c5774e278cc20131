"""suggest: what the machine without settings does on the rows at hand, and the parameters that pin what it chooses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Literal

from sklearn.base import clone

from dkl.data.checks import whole_number
from dkl.data.coerce import as_dataset
from dkl.data.labels import TaskChoice
from dkl.data.together.rows import GroupsAndTimes
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.machines.reasons import Tried
from dkl.methods.base import FeatureLearner
from dkl.methods.validation import check_target
from dkl.passes.room import checked_limit
from dkl.plain_text import Printed
from dkl.progress import Choice, on_one_line


@dataclass(frozen=True)
class Suggestion(Printed):
    """The choice of a machine without settings on some rows, with its reasons; print it.

    Parameters
    ----------
    rows : str
        What it is for.
    learner : FeatureLearner
        The features that were chosen, not fitted.
    settings : mapping
        Parameters of the machine on them: solver, loss, penalty, and what it holds rows out by.
    reasons : tuple of str
        The sentences that the machine's own fit would leave in `reasons_`.
    tried : tuple of Tried
        Every kind of features that raced, with its score on held-out rows, the chosen one first; empty where there was
        no race.
    task : str
    seed : int
    summary : str
        What was chosen, and how it does on held-out rows, in one sentence.
    """

    rows: str
    learner: FeatureLearner
    settings: Mapping[str, Any]
    reasons: tuple[str, ...]
    tried: tuple[Tried, ...]
    task: str
    seed: int
    summary: str

    @property
    def features(self) -> Any:
        """A new feature learner, not fitted."""
        # A suggestion is asked for its estimator again and again; each answer is a new one, so that no fit changes
        # another.
        return clone(self.learner).set_params(random_state=self.seed)

    @property
    def estimator(self) -> Any:
        """A new kernel machine with all that was chosen pinned, not fitted: its fit holds no race.

        On columns of numbers it predicts what the machine without settings predicts; categories that become target
        means are coded with other rows kept aside. What the machine decided on columns is in the reasons: numbers that
        it takes for categories too, beside the numbers, are `categorical` here, which takes them for names alone (a
        Dataset is made with them: ``create_dataset(..., categorical=[...])``); crosses of numbers are not pinned; and
        columns that run ahead of older rows are to be left out of what is given to `fit`. Probabilities are calibrated
        on rows that the race held out, which there are none of without it: set ``calibrate=True``, and the fit keeps
        rows aside for them.
        """
        machine = KernelClassifier if self.task == "classification" else KernelRegressor
        return machine(self.features, random_state=self.seed, **self.settings)

    def __repr__(self) -> str:
        width = max((len(kind.name) for kind in self.tried), default=0)
        table = [
            f"    {kind.name:{width}}  {'-' if kind.score is None else f'{kind.score:.4f}':>8}  {kind.outcome}"
            for kind in self.tried
        ]
        # by the loss, where the summary has the accuracy of classes
        head = ["tried, with 1 - mean loss on held-out rows, by which they are compared:"] if table else []
        lines = [fill(reason, 100, subsequent_indent="    ") for reason in self.reasons]
        return "\n".join([f"for {self.rows}", self.summary, *head, *table, *lines, "pinned:", repr(self.estimator)])


def suggest(
    data: object,
    y: object = None,
    *,
    groups: Any = None,
    times: Any = None,
    task: TaskChoice = "auto",
    effort: Literal["fast", "balanced", "best"] = "balanced",
    random_state: int = 0,
    progress: Choice = None,
    memory_limit: int | str | None = None,
) -> Suggestion:
    """The choice of `KernelClassifier()` or `KernelRegressor()` on these rows, and why; nothing is fitted to all rows.

    Does what the machine's own fit begins with, by the same code and seed: it looks for columns that run ahead of older
    rows and for numbers that are names, then lets kinds of features race. Tells what was tried, the scores on held-out
    rows, what won, and gives a machine with these choices as its parameters.

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
    effort : {"fast", "balanced", "best"}
        As of `KernelClassifier`.
    random_state : int
        Of the race, and of the estimator.
    progress : bool, callable or None
    memory_limit : int, str or None
        Bytes that a process may use.

    Returns
    -------
    Suggestion
        ``suggestion.estimator.fit(data)`` learns the features that were chosen from all rows.

    Raises
    ------
    ValueError
        If the rows are not what a Dataset can hold, or there is no target that a fit takes.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import dkl
    >>> X, y = load_wine(return_X_y=True)
    >>> suggestion = dkl.suggest(X, y, effort="fast")
    >>> type(suggestion.estimator).__name__, suggestion.tried[0].outcome
    ('KernelClassifier', 'chosen')
    """
    # A generator would give another answer for the same call, and a suggestion is to be looked up again.
    random_state = whole_number(random_state, "random_state")
    checked_limit(memory_limit)
    # Rows of a Dataset are not copied, and all others become one here.
    beside = GroupsAndTimes(data, groups, times)
    dataset = beside.with_rule(as_dataset(beside.X, y, task=task))
    check_target("suggest", dataset)
    named = {"by_group": groups, "by_time": times if groups is None else None}
    columns = {name: given for name, given in named.items() if isinstance(given, str)}
    machine = (KernelClassifier if dataset.task == "classification" else KernelRegressor)(
        effort=effort, random_state=random_state, progress=progress, memory_limit=memory_limit
    )
    with on_one_line() as conclude:
        chosen, settings = machine._chosen_on(data, y, groups, times)
        conclude(chosen.summary)
    return Suggestion(
        repr(dataset),
        clone(chosen.features),
        {**settings, **columns},
        chosen.reasons,
        chosen.tried,
        str(dataset.task),
        random_state,
        chosen.summary,
    )

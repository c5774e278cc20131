"""Explanations as arguments of `dkl.plan`, which predicts what they read, hold and compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dkl.data.dataset import Dataset
from dkl.explain.column_groups import Groups, columns_of
from dkl.explain.contributions import background_records
from dkl.explain.dependence import Column, dependence_records, positions_of
from dkl.explain.importance import importance_records
from dkl.explain.model import model_of, rows_to_explain
from dkl.explain.wave_pass import ROWS, TILE_BYTES
from dkl.methods.room import PlannedMixin
from dkl.passes.loop import PlannedRun
from dkl.protocols.estimators import FittedModel
from dkl.protocols.records import Record

Kind = Literal["importance", "partial_dependence", "contributions"]


@dataclass(frozen=True, eq=False)
class Explanation(PlannedMixin):
    """An explanation of a fitted model that is to be planned, not computed.

    Parameters
    ----------
    model : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor
    kind : {"importance", "partial_dependence", "contributions"}
        The function of `dkl.explain`; for contributions the pass over the background is planned.
    columns : list of int, str or pairs, or None
        The columns of a partial dependence; None is every single column.
    groups : mapping of str to sequence of int or str, or None
        As in `dkl.explain.importance`.
    memory_limit : int, str or None
        The most bytes that one process may hold, as for the explanation itself.

    Raises
    ------
    ValueError
        If there is no such kind.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> import dkl
    >>> from dkl.explain import Explanation
    >>> X, y = load_iris(return_X_y=True)
    >>> model = dkl.KernelClassifier(dkl.RandomFeatures(n_features=20, random_state=0), random_state=0).fit(X, y)
    >>> dkl.plan(Explanation(model, "importance"), X).n_passes
    1
    """

    model: FittedModel
    kind: Kind
    columns: list[Column] | None = None
    groups: Groups | None = None
    memory_limit: int | str | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("importance", "partial_dependence", "contributions"):
            raise ValueError(f"kind is {self.kind!r}; expected 'importance', 'partial_dependence' or 'contributions'")

    def replayed(self, dataset: Dataset) -> PlannedRun:
        """The explanation's only pass, and the bytes of the sample of rows.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As in `dkl.explain.importance` and `dkl.explain.partial_dependence`.
        """
        plan, records = PlannedRun(n_rows=dataset.n_rows), self._records(rows_to_explain(self.model, dataset))
        plan.passes.append((records, 1))
        if ROWS in records:
            # The sample is held twice while it is assembled from the blocks.
            rows = {"rows that stand for all": 2 * 8 * min(ROWS.k, dataset.n_rows) * dataset.n_columns}
            # predictions for features without a formula are computed in tiles
            plan.holds(rows if len(records) > 1 else rows | {"tiles of them": 4 * TILE_BYTES})
        return plan

    def _records(self, dataset: Dataset) -> tuple[Record, ...]:
        """The records of the pass, by the function that the explanation itself calls."""
        scorer, known = model_of(self.model), columns_of(self.model, None, self.groups)
        if self.kind == "importance":
            return importance_records(scorer, dataset.n_columns)
        if self.kind == "contributions":
            return background_records(scorer, known)
        columns = range(len(known)) if self.columns is None else self.columns
        return dependence_records(scorer, known, positions_of(columns, known))

    def __repr__(self) -> str:
        return f"{self.kind} of {self.model!r}"

"""Planned explanations: what one will read, hold and compute, for `dkl.plan`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dkl.data.dataset import Dataset
from dkl.explain.column_groups import Groups, columns_of
from dkl.explain.contributions import background_records
from dkl.explain.dependence import Column, dependence_records, positions_of
from dkl.explain.importance import importance_records
from dkl.explain.model import model_of, rows_to_explain
from dkl.explain.wave_pass import ROWS, TILE_BYTES
from dkl.protocols.estimators import FittedModel
from dkl.protocols.records import Record

Kind = Literal["importance", "partial_dependence", "contributions"]


@dataclass(frozen=True, eq=False)
class Explanation:
    """An explanation of a fitted model before anything is computed, for `dkl.plan`.

    Parameters
    ----------
    model : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor
    kind : {"importance", "partial_dependence", "contributions"}
        The function of `dkl.explain`; of contributions the pass over the background is planned.
    columns : list of int, str or pairs, or None
        Of partial dependence; None is every column by itself.
    groups : mapping of str to sequence of int or str, or None
        As of `dkl.explain.importance`.
    memory_limit : int, str or None
        Bytes that one process may hold, as the explanation would be given.

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

    def planned_passes(self, dataset: Dataset) -> Sequence[tuple[Sequence[Record], int]]:
        """The records of its one pass.

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As `dkl.explain.importance` and `dkl.explain.partial_dependence`.
        """
        return [(self._records(rows_to_explain(self.model, dataset)), 1)]

    def _records(self, dataset: Dataset) -> tuple[Record, ...]:
        """What the function of that kind asks of its pass, as it computes it itself."""
        scorer, known = model_of(self.model), columns_of(self.model, None, self.groups)
        if self.kind == "importance":
            return importance_records(scorer, dataset.n_columns)
        if self.kind == "contributions":
            return background_records(scorer, known)
        columns = range(len(known)) if self.columns is None else self.columns
        return dependence_records(scorer, known, positions_of(columns, known))

    def planned_memory(self, dataset: Dataset) -> dict[str, int]:
        """Rows that stand for all, and the tiles of them that are predicted where no formula has sums of all rows."""
        records = self._records(dataset)
        if ROWS not in records:
            return {}
        # The sample is held twice while it is put together from the blocks, each row with its hash beside it.
        rows = {"rows that stand for all": 2 * 8 * min(ROWS.k, dataset.n_rows) * dataset.n_columns}
        return rows if len(records) > 1 else rows | {"tiles of them": 4 * TILE_BYTES}

    def __repr__(self) -> str:
        return f"{self.kind} of {self.model!r}"

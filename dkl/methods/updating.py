"""Updated, for learners that select by sums: after rows are appended or dropped they read only the changed blocks."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import dask
from dask.base import tokenize
from sklearn.utils.validation import check_is_fitted

from dkl.data.dataset import Dataset
from dkl.data.sources.rows import RowSource
from dkl.data.sources.summed import SummedSource
from dkl.encodings.categories import WHY_NO_UPDATE, refuse_codes
from dkl.kernels.gram import MOST_IN_ONE_GRAM
from dkl.methods.parameters import StorePath
from dkl.methods.provenance import record_rows, recorded
from dkl.methods.validation import check_classes, check_columns
from dkl.passes.kept_sums import KeepingDriver, KeptSums, with_kept_sums
from dkl.passes.loop import Run
from dkl.protocols.driver import Driver
from dkl.protocols.records import BlockSum
from dkl.version import __version__

P = TypeVar("P")
S = TypeVar("S")


class Updated:
    """A learner whose sums can be stored for each block; a subclass weights and chooses candidates."""

    sums: Any
    _supervised: ClassVar[bool]
    max_rows: int | None
    stats_: list[Any]
    seed_: int
    n_features_in_: int
    _fingerprint: str
    _running: Callable[[str], Run]
    _run: Callable[..., Any]

    def update(self, dataset: Dataset) -> Self:
        """Update the fit after rows were appended to the store or dropped from it; only changed blocks are read.

        Candidates, bandwidth and scaler stay as in `fit`. If they do not depend on the rows (a number as bandwidth, no
        scaling), the result has the bits of a new `fit` on the same blocks; otherwise only the selection is new, among
        the earlier candidates. Regression targets are centred at the mean of the fit's first block, so the bits are
        those of a new fit while that block is unchanged, and otherwise equal up to rounding; for `TunedRegressor`,
        whose sums use the units of the first fit, always up to rounding. ``class_weight="balanced"`` changes the
        weights of old rows when class shares change, so that all blocks are read; so does `max_rows` (and `n_rows` of
        `LeverageFeatures`), whose share of each block changes. The landmarks of `LandmarkFeatures` stay, too, and a
        random landmark still counts as a row after its row was dropped.

        `MarginFeatures`, `JointFeatures`, `PeakFeatures` and tuned hinges depend on more than sums: they have
        ``warm_start=True``, alone and inside a machine, and `fit` reads all rows again.

        Parameters
        ----------
        dataset : Dataset
            A version of the store, whole or a split of it: ``ds.append(X, y)``, ``ds.drop(blocks=[3])``.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If no sums were stored (`sums`), the columns or classes are not those of `fit`, or the rows are not in a
            store.
        """
        with recorded(self) as learner:
            check_is_fitted(learner)
            learner._check_update(dataset)
            record_rows(dataset)
            learner._fingerprint = ""
            learner.stats_ = []
            if learner.max_rows is not None:
                dataset = dataset.thin(learner.max_rows, learner.seed_)
            learner._weigh(dataset)
        return self

    def _check_update(self, dataset: Dataset) -> None:
        """Raise ValueError for rows that the fit cannot be updated with, before any is read."""
        if self.sums is None:
            raise ValueError(f"{type(self).__name__} has no sums of its blocks: {self._without_sums()}")
        if not isinstance(dataset, Dataset):
            raise ValueError(
                f"update takes a Dataset in a store, whose blocks it recognises, not {type(dataset).__name__}: append "
                "rows to the dataset of the fit, ds = ds.append(X, y), then update(ds)"
            )
        refuse_codes(dataset, "update", WHY_NO_UPDATE)
        check_columns(self, dataset)
        if self._supervised:
            check_classes(self, dataset)

    def _without_sums(self) -> str:
        """The remedy in the error for a learner without stored sums."""
        return (
            "fit with sums='folder', or fit all rows again. For a model that was loaded, name their folder by "
            "set_params(sums='folder'), for a machine by features__sums"
        )

    def _check_gram(self, n_columns: int, parameter: str) -> None:
        """Raise ValueError if the Gram matrix of `n_columns` columns, set by `parameter`, is too large to be stored."""
        if n_columns > MOST_IN_ONE_GRAM:
            raise ValueError(
                f"sums={str(self.sums)!r} keeps the Gram matrix of the features for each block, of at most "
                f"{MOST_IN_ONE_GRAM:,} columns; {parameter}={getattr(self, parameter)} makes {n_columns:,}. Set "
                f"{parameter}, or leave sums out"
            )

    def _state_of_sums(self, driver: Driver[P, S], problem: P, dataset: Dataset, stage: str) -> S:
        """The last state of a driver with one pass, which reads and stores block sums in the folder `sums`, if set."""
        if self.sums is None:
            state: S = self._run(driver, problem, dataset, stage)
            return state
        record, source = _sums_record(driver, problem), dataset.source
        rows: RowSource
        if isinstance(source, SummedSource):
            # these blocks are stored sums already, so none are stored again
            sums, rows = KeptSums("", source.fingerprint), source.added
        else:
            sums = kept_sums(self.sums, record, dataset, device=self._running("").device)
            rows = with_kept_sums(source, sums, record.result_bytes)
        kept: S = self._run(KeepingDriver(driver, sums), problem, dataset.with_rows(rows, dataset.schema), stage)
        return kept

    def summed(self, dataset: Dataset) -> BlockSum:
        """The record of the pass whose sums `_weigh` uses; sums over parts of the rows may be added."""
        return _sums_record(*self._summing(dataset))

    def _summing(self, dataset: Dataset) -> tuple[Driver[Any, Any], Any]:
        """The driver whose pass computes the sums, and its problem on the present candidates."""
        raise TypeError(f"{type(self).__name__} does not say what it sums")

    def _weigh(self, dataset: Dataset) -> None:
        """Compute the weights of the present candidates from the rows, and choose features by them."""
        raise TypeError(f"{type(self).__name__} does not say how it weighs")


def _sums_record(driver: Driver[P, S], problem: P) -> BlockSum:
    """The record of a driver with one pass.

    Raises
    ------
    TypeError
        If it is not a sum over blocks.
    """
    (record,) = driver.plan(problem)[0][0]
    if not isinstance(record, BlockSum):
        raise TypeError(f"the record {record.name!r} is no sum over blocks, and sums alone can be kept")
    return record


def updatable(features: object, sums: StorePath) -> Any:
    """A copy of a machine's features that can be updated, with stored sums in the folder `sums`.

    Raises
    ------
    ValueError
        If they store no sums.
    """
    if not isinstance(features, Updated):
        more = " with features__warm_start=True to go on from them" if hasattr(features, "warm_start") else ""
        raise ValueError(
            f"{type(features).__name__} keeps no sums of its rows: fit again{more}, or go on with the linear model "
            "alone by partial_fit (solver='sgd'); AlignedFeatures, PosteriorFeatures, LandmarkFeatures and "
            "LeverageFeatures take sums= for it"
        )
    updated: Updated = copy.copy(features)
    if sums is not None:
        # a loaded model does not know the folder of its sums
        updated.sums = sums
    return updated


def kept_sums(store: str | os.PathLike[str], record: BlockSum, dataset: Dataset, *, device: str) -> KeptSums:
    """The stored sums of a record over the blocks of a dataset, in the folder `store`.

    Raises
    ------
    ValueError
        If the rows are not in a store of dkl: blocks in memory have no identity that a later run could recognise.
    """
    if dataset.store is None:
        raise ValueError(
            f"sums={str(store)!r} keeps the sums of blocks of a store, and these rows are in {dataset.source.place}; "
            "write them with dkl.create_dataset first, or leave sums out"
        )
    # an operand that is not identified by its content is an error, since the sums of another run could be mistaken for
    # its own
    with dask.config.set({"tokenize.ensure-deterministic": True}):
        token = tokenize(record.name, record.operands, device, __version__)
    return KeptSums(str(store), token)

"""export_sums: the sums of one site's rows, under the numbers that were agreed on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator

from dkl.data.checks import spoken
from dkl.data.dataset import Dataset
from dkl.data.sources.rearranged import BlockPart, RearrangedSource
from dkl.encodings.categories import refuse_codes
from dkl.federated.agreement import CODES_DO_NOT_TRAVEL, Agreement, as_agreement, node_array
from dkl.methods.validation import check_classes, check_columns, check_target
from dkl.model_io import save
from dkl.passes.devices import computing_device
from dkl.passes.loop import run_pass
from dkl.passes.tree_sum import Node
from dkl.progress import Choice, resolve_progress
from dkl.version import __version__


@dataclass(frozen=True, eq=False)
class SiteSums:
    """The sums of the rows of one site, a node of the tree over all blocks at a time.

    Parameters
    ----------
    site : str
    agreement : str
        The digest of the agreement.
    version : str
        Of dkl.
    device : str
        Where they were computed: a GPU rounds otherwise.
    nodes : ndarray of shape (k, 2), int64
        Level and index of each node that has rows.
    rows : ndarray of shape (k,), int64
    weights : ndarray of shape (k,), float64
    class_weights : ndarray of shape (k, K), float64, or None
    sums : mapping of str to ndarray of shape (k, ...)
    """

    site: str
    agreement: str
    version: str
    device: str
    nodes: np.ndarray
    rows: np.ndarray
    weights: np.ndarray
    class_weights: np.ndarray | None
    sums: Mapping[str, np.ndarray]

    def __repr__(self) -> str:
        return f"SiteSums(site {self.site!r}, {int(self.rows.sum()):,} rows in {len(self.nodes)} sums)"


def export_sums(
    agreement: Agreement | str | Path,
    rows: Dataset,
    store: str | Path | None = None,
    *,
    site: str,
    allow_few_rows: bool = False,
    overwrite: bool = False,
    device: str = "auto",
    progress: Choice = None,
    memory_limit: int | str | None = None,
) -> SiteSums:
    """Sum the rows of one site as was agreed, in one pass; the rows stay where they are.

    Blocks are added up to the largest nodes that the tree over the blocks of all sites has within this site: some two
    sums for each doubling of the number of blocks, and none of a single block unless the numbers leave no other.

    Parameters
    ----------
    agreement : Agreement, str or Path
    rows : Dataset
        In a store of dkl, with as many blocks as were agreed on; blocks and rows may have been dropped since.
    store : str, Path or None
        Where the sums are written, for the one who fits; None writes nothing.
    site : str
        Whose rows they are.
    allow_few_rows : bool
        Write sums of fewer rows (of a class, where sums are by class) than the rows have columns, too: such sums say
        much about single rows, and that of one row is the row.
    overwrite : bool
        Replace sums that are there.
    device : {"auto", "cpu", "gpu"}
    progress : bool, callable or None
    memory_limit : int, str or None

    Returns
    -------
    SiteSums

    Raises
    ------
    ValueError
        If the rows are not those that were agreed on (columns, classes, dtype, number of blocks), or a sum has too few
        of them.
    FileExistsError
        If something is at `store`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> rows = dkl.create_dataset("north.zarr", X, np.where(X[:, 0] > 0, "yes", "no"), rows_a_block=50)
    >>> learner = dkl.AlignedFeatures(dkl.Gaussian(1.0), n_candidates=100, n_features=20, random_state=0)
    >>> agreement = dkl.agree(learner, rows, {"north": 4, "south": 5})
    >>> dkl.export_sums(agreement, rows, "north-sums.zarr", site="north")
    SiteSums(site 'north', 200 rows in 1 sums)
    """
    agreement = as_agreement(agreement)
    learner, numbers = agreement.summing(), agreement.numbers(site)
    _check_rows(agreement, learner, rows, site)
    computed = computing_device(device)
    if computed == "mixed":
        raise ValueError("device='mixed' lets each worker round in its own way; sums that add up take 'cpu' or 'gpu'")
    nodes = [node for node in agreement.nodes(site) if _own(rows.source.block_rows, node, agreement, numbers).any()]
    counted = _counts(agreement, rows, nodes, numbers)
    if not allow_few_rows:
        _check_enough(agreement, rows, nodes, numbers, counted[0], by_class=learner._supervised)
    record, sums = learner.summed(rows), []
    for node in nodes:
        # the site's blocks of the node under the numbers that they have in the tree of all sites
        made_of = {number: (BlockPart(number - numbers.start),) for number in node.blocks(agreement.n_blocks)}
        source = RearrangedSource(rows.source, made_of, agreement.n_blocks)
        result = run_pass(
            source, (record,), publish=resolve_progress(progress), memory_limit=memory_limit, device=computed
        )
        sums.append(result.results[0])
    of_names = {name: np.stack([of_node[name] for of_node in sums]) for name in record.accumulators}
    made = SiteSums(site, agreement.digest, __version__, str(computed), node_array(nodes), *counted, of_names)
    if store is not None:
        save(made, store, overwrite=overwrite)
    return made


def _check_rows(agreement: Agreement, learner: BaseEstimator, rows: Dataset, site: str) -> None:
    """Raise ValueError where the rows of a site are not those that were agreed on."""
    if not isinstance(rows, Dataset) or rows.store is None:
        raise ValueError(
            "rows have to be a Dataset in a store of dkl, whose blocks keep their numbers: write them with "
            "dkl.create_dataset first"
        )
    agreement.check_version()
    refuse_codes(rows, "export_sums", CODES_DO_NOT_TRAVEL)
    check_columns(learner, rows)
    if learner._supervised:
        check_target(type(learner).__name__, rows)
        if rows.task != agreement.schema.task:
            raise ValueError(
                f"the target of site {site!r} is for {rows.task}, that agreed on for {agreement.schema.task}"
            )
        check_classes(learner, rows)
    ours, agreed = rows.schema, agreement.schema
    if (ours.dtype, ours.is_sparse) != (agreed.dtype, agreed.is_sparse):
        kinds = {True: "sparse", False: "dense"}
        raise ValueError(
            f"the rows of site {site!r} are {kinds[ours.is_sparse]} of {ours.dtype}, and {kinds[agreed.is_sparse]} of "
            f"{agreed.dtype} were agreed on; write the store anew from such rows"
        )
    if not np.array_equal(rows.passthrough, np.zeros(0) if agreed.passthrough is None else agreed.passthrough) and (
        agreed.passthrough is not None or rows.passthrough.any()
    ):
        raise ValueError(f"the columns that scaling leaves alone are others at site {site!r} than were agreed on")
    if rows.source.n_blocks != agreement.sites[site]:
        raise ValueError(
            f"{rows.source.place} has {rows.source.n_blocks} blocks, and {agreement.sites[site]} were agreed on for "
            f"site {site!r}; agree anew with agreement.with_sites({{...}})"
        )


def _own(values: np.ndarray, node: Node, agreement: Agreement, numbers: range) -> np.ndarray:
    """The entries of `values`, one for each of a site's blocks, that belong to the blocks of a node."""
    blocks = node.blocks(agreement.n_blocks)
    return values[blocks.start - numbers.start : blocks.stop - numbers.start]


def _counts(
    agreement: Agreement, rows: Dataset, nodes: list[Node], numbers: range
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows, weights and weights of the classes of each node."""
    counts = rows.source.counts

    def of_nodes(values: np.ndarray, dtype: type) -> np.ndarray:
        parts = [_own(values, node, agreement, numbers).sum(axis=0) for node in nodes]
        return np.array(parts, dtype).reshape(len(nodes), *values.shape[1:])

    classes = None if counts.class_weights is None else of_nodes(counts.class_weights, np.float64)
    return of_nodes(counts.rows, np.int64), of_nodes(counts.weights, np.float64), classes


def _check_enough(
    agreement: Agreement,
    rows: Dataset,
    nodes: list[Node],
    numbers: range,
    of_rows: np.ndarray,
    *,
    by_class: bool,
) -> None:
    """Raise ValueError for sums of so few rows that they say much about each of them."""
    of_classes = _rows_of_classes(rows) if by_class and rows.classes is not None else None
    for place, node in enumerate(nodes):
        few, what = int(of_rows[place]), "rows"
        if of_classes is not None:
            count = _own(of_classes, node, agreement, numbers).sum(axis=0)
            # a class without rows has a sum of nothing
            present = np.flatnonzero(count)
            rarest = present[np.argmin(count[present])]
            few, what = int(count[rarest]), f"rows of class {spoken(np.asarray(rows.classes)[rarest])}"
        if few < rows.n_columns:
            own = node.blocks(agreement.n_blocks)
            first, last = own.start - numbers.start, own.stop - 1 - numbers.start
            where = f"block {first}" if first == last else f"blocks {first} to {last}"
            raise ValueError(
                f"the sum over {where} of {rows.source.place} would be of {few} {what}, fewer than their "
                f"{rows.n_columns} columns, and sums of few rows reveal rows; write the store anew with larger blocks "
                "(rows_a_block=), or pass allow_few_rows=True where that is no secret"
            )


def _rows_of_classes(rows: Dataset) -> np.ndarray:
    """The number of rows of each class in each block, (n_blocks, K)."""
    counts, n_classes = rows.source.counts.class_weights, len(np.asarray(rows.classes))
    if counts is not None and not rows.source.has_weight:
        return counts
    # a weight of a hundred is one row still, and only the targets tell
    blocks = rows.source.blocks_without_x()
    return np.array([np.bincount(np.asarray(block.y, np.int64), minlength=n_classes) for block in blocks])

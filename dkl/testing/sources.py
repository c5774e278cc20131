"""Checks a source of rows: the blocks that its reader returns are as the source describes them."""

from __future__ import annotations

import pickle

import numpy as np
from scipy import sparse

from dkl.protocols.source import BlockSource
from dkl.testing.require import require, same_bits

# A block has no more rows than this, whatever the source is: the memory of a pass follows from it.
MOST_ROWS = 65_536


def check_source(source: BlockSource) -> None:
    """Raise AssertionError if `source` breaks a promise that passes rely on; reads every block twice.

    Parameters
    ----------
    source : BlockSource
        Its tickets must be loadable here (no Dask futures).

    Raises
    ------
    AssertionError
        Naming the promise, the block and what was found instead.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.data.sources.in_memory import ArraySource
    >>> from dkl.testing.sources import check_source
    >>> check_source(ArraySource(np.eye(10), rows_a_block=4))
    """
    require(source.n_blocks == len(source.block_rows), "block_rows has one entry a block")
    require(np.issubdtype(np.asarray(source.block_rows).dtype, np.integer), "block_rows holds whole numbers")
    # Workers get readers and tickets as pickles.
    reader = pickle.loads(pickle.dumps(source.reader()))
    row_ids = []
    for index in range(source.n_blocks):
        block = source.reader().load(source.ticket(index))
        # A block has the shapes, types and weights that the source says it has, and that passes count on.
        where = f"block {index} of {source.place}"
        require(block.index == index, f"{where} carries its number, not {block.index}")
        require(
            block.n_rows == source.block_rows[index], f"{where} has {block.n_rows} rows, not {source.block_rows[index]}"
        )
        require(block.n_rows <= MOST_ROWS, f"{where} has at most {MOST_ROWS} rows, not {block.n_rows}")
        require(block.X.shape == (block.n_rows, source.n_columns), f"{where}: X has shape {block.X.shape}")
        require(block.X.dtype == source.dtype, f"{where}: X is {block.X.dtype}, not {source.dtype}")
        require(sparse.issparse(block.X) == source.is_sparse, f"{where}: X is sparse where the source says so")
        require(
            block.row_id.dtype == np.int64 and block.row_id.shape == (block.n_rows,),
            f"{where}: row_id is int64, one a row",
        )
        if block.weight is not None:
            require(block.weight.dtype == np.float64, f"{where}: weights are float64, not {block.weight.dtype}")
            require(bool((block.weight > 0).all()), f"{where}: rows of weight 0 are dropped")
        if block.y is not None:
            require(
                block.y.dtype in (np.int64, np.float64), f"{where}: y is int64 codes or float64, not {block.y.dtype}"
            )
            require(len(block.y) == block.n_rows, f"{where}: y has {len(block.y)} entries for {block.n_rows} rows")
        again = reader.load(pickle.loads(pickle.dumps(source.ticket(index))))
        pairs = [(block.X, again.X), (block.y, again.y), (block.weight, again.weight), (block.row_id, again.row_id)]
        require(
            all(a is b is None or (a is not None and b is not None and same_bits(a, b)) for a, b in pairs),
            f"block {index} has the same bits when a pickled reader reads it again",
        )
        row_ids.append(block.row_id)
    # Splits and samples choose rows by a hash of their identity: two rows with the same one would always go together.
    identities = np.concatenate(row_ids) if row_ids else np.empty(0, np.int64)
    require(len(np.unique(identities)) == len(identities), "row_id is different for each row")
    require(bool(source.fingerprint) and source.fingerprint == source.fingerprint, "the fingerprint is a fixed text")
    require(bool(source.place), "place says how messages call the rows")

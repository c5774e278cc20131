"""Views: what the steps of a view do in turn is what its blocks hold, whatever is asked for and wherever rows are."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.sources.rearranged import BlockPart, RearrangedSource
from dkl.data.sources.rows import RowSource
from dkl.data.together.rules import GivenColumn, HeldByGroup
from dkl.data.view import ColumnAlong, Fewest, KeptColumns, NoColumns, RowChoice, RowsChosen, View
from dkl.protocols.block import Block
from dkl.testing import check_source

N, D, ROWS = 200, 5, 30
X = np.random.default_rng(0).normal(size=(N, D)).astype(np.float32)
Y = np.arange(N) % 3
GROUPS = np.arange(N) // 8
STAYS = X[:, 1] > -0.5
KEPT = np.array([0, 2, 3])


@dataclass(frozen=True)
class Positive(RowChoice):
    """The rows whose ids are those of rows that stay."""

    identity = "stays"
    needs = ("row_id",)

    def choose(self, block: Block, chosen: np.ndarray) -> np.ndarray:
        return chosen[STAYS[block.row_id[chosen]]]


@dataclass(frozen=True)
class Doubled:
    """Twice the first column, of rows that stay alone: others are refused."""

    def __call__(self, rows: Any, row_id: np.ndarray) -> np.ndarray:
        if not STAYS[row_id].all():
            raise ValueError("a row that was left out was read")
        values = rows[:, [0]]
        return 2.0 * np.asarray(values.todense() if sparse.issparse(values) else values, np.float64).ravel()


def base_of(kind: str, folder: Path) -> RowSource:
    if kind == "memory":
        return as_dataset(X, Y).source
    if kind == "sparse":
        return as_dataset(sparse.csr_array(X), Y).source
    if kind == "graph":
        return as_dataset(da.from_array(X, chunks=(ROWS, D)), da.from_array(Y, chunks=ROWS)).source
    return dkl.create_dataset(folder / "rows.zarr", X, Y, rows_a_block=ROWS).source


def stepped(source: RowSource) -> View:
    """Groups noted, rows chosen, rows held out, a column read along, columns kept."""
    bounds = np.cumsum(source.block_rows)
    groups = View(source, GivenColumn("given group", np.split(GROUPS, bounds[:-1])))
    rows = np.array([part.sum() for part in np.split(STAYS, bounds[:-1])])
    chosen = View(groups, RowsChosen(Positive(), rows), n_classes=3)
    held = View(chosen, HeldByGroup("given group", np.unique(GROUPS)))
    along = View(held, ColumnAlong("twice", Doubled()))
    return View(View(along, KeptColumns(np.delete(np.arange(D), 1), D)), KeptColumns(KEPT, D - 1))


def loaded(source: RowSource, parts: tuple[str, ...] | None = None) -> list[Block]:
    tickets = dask.compute(*(source.ticket(index) for index in range(source.n_blocks)), traverse=False)
    given = {} if parts is None else {"parts": parts}
    return [source.reader().load(ticket, **given) for ticket in tickets]


def column(blocks: list[Block], name: str) -> np.ndarray:
    return np.concatenate([block.columns[name] for block in blocks])


def dense(rows: Any) -> np.ndarray:
    return rows.toarray() if sparse.issparse(rows) else rows


@pytest.mark.parametrize("kind", ["memory", "sparse", "graph", "store"])
def test_a_view_of_views_has_what_its_steps_do_in_turn(kind: str, tmp_path: Path) -> None:
    base = base_of(kind, tmp_path)
    view = stepped(base)
    assert view.base is base
    blocks = loaded(view)
    order = np.concatenate([block.row_id for block in blocks])
    twice, groups = 2.0 * X[order, 0].astype(np.float64), GROUPS[order]
    np.testing.assert_array_equal(order, np.flatnonzero(STAYS))
    np.testing.assert_array_equal(
        np.concatenate([dense(block.X) for block in blocks]), np.delete(X, 1, axis=1)[order][:, KEPT]
    )
    np.testing.assert_array_equal(np.concatenate([block.y for block in blocks]), Y[order])
    # a column along comes whenever X does, others where they are asked for
    assert all(set(block.columns) == {"twice"} for block in blocks)
    np.testing.assert_array_equal(column(blocks, "twice"), twice)
    np.testing.assert_array_equal(column(loaded(view, ("row_id", "given group")), "given group"), groups)
    without = list(view.blocks_without_x(("given group", "twice")))
    np.testing.assert_array_equal(column(without, "given group"), groups)
    np.testing.assert_array_equal(column(without, "twice"), twice)
    held = np.concatenate([block.held_with for block in blocks])
    pairs = np.unique(np.stack([held, groups]), axis=1)
    assert pairs.shape[1] == len(np.unique(held)) == len(np.unique(groups))
    np.testing.assert_array_equal(view.counts.class_weights, [np.bincount(b.y, minlength=3) for b in blocks])
    assert (view.n_columns, view.most_folds) == (len(KEPT), len(np.unique(GROUPS)))
    np.testing.assert_array_equal(view.block_rows, [block.n_rows for block in blocks])
    assert view.block_nbytes >= max(block.nbytes for block in blocks)
    assert view.read_nbytes >= base.read_nbytes + base.block_nbytes
    if kind != "graph":
        check_source(view)


def test_without_its_columns_a_view_reads_no_x(tmp_path: Path) -> None:
    view = View(stepped(base_of("store", tmp_path)), NoColumns())
    for block in loaded(view):
        assert block.X.shape == (block.n_rows, 0)
        assert not block.columns


def test_fingerprints_of_views_are_those_of_earlier_releases(tmp_path: Path) -> None:
    def sha(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    base = base_of("store", tmp_path)
    view = stepped(base)
    given, chosen, held, read, without, kept = (step.identity for step in view.steps)
    of_rows = sha(f"{base.fingerprint}\n{given}\n{chosen}\n{held}")
    along = sha(f"{of_rows} {read}")
    assert view.fingerprint == sha(f"{sha(f'{along} {without}')} {kept}")
    # a column of groups does not change what the rows of a block are
    parts = [base.block_identity(2), chosen, read, without, kept]
    assert view.block_identity(2) == "\n".join(parts)


def test_rows_of_a_split_are_copied_once_however_many_steps_choose_them(tmp_path: Path) -> None:
    dataset = dkl.create_dataset(tmp_path / "rows.zarr", X, Y, rows_a_block=ROWS)
    source = dataset.split({"train": 0.7, "test": 0.3})["train"].thin(60).source
    assert isinstance(source.steps[-1].at(0), Fewest)
    assert source.base is dataset.source
    assert source.read_nbytes == dataset.source.read_nbytes + dataset.source.block_nbytes


def test_parts_of_blocks_are_joined_with_their_columns(tmp_path: Path) -> None:
    view = stepped(base_of("store", tmp_path))
    parts = {1: tuple(BlockPart(block, number, 2, 5) for number, block in enumerate((0, 3))), 2: (BlockPart(4),)}
    source = RearrangedSource(view, parts, 4)
    np.testing.assert_array_equal(source.block_rows > 0, [False, True, True, False])
    joined, whole = (source.reader().load(source.ticket(index)) for index in (1, 2))
    assert (joined.index, whole.index) == (1, 2)
    assert joined.n_rows == source.block_rows[1]
    np.testing.assert_array_equal(joined.columns["twice"], 2.0 * X[joined.row_id, 0].astype(float))
    assert whole.row_id.tolist() == loaded(view)[4].row_id.tolist()
    assert source.stored_nbytes == 3 * view.stored_nbytes // np.count_nonzero(view.block_rows)

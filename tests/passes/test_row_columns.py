"""Row columns: round t is read while t + 1 is written, and a broken round leaves the last one whole."""

from __future__ import annotations

import os
from dataclasses import replace

import dask
import numpy as np
import pytest
import zarr

import dkl
from dkl.errors import StoreError
from dkl.passes import loop
from dkl.passes.loop import check_reach, run_pass
from dkl.passes.row_columns import RowColumns
from dkl.protocols.records import Accumulator, BlockSum
from tests.passes.sources import Source, make_block, ragged

SOURCE = Source(ragged(11, 30))
COLUMNS = {"alpha": ("float64", ()), "pair": ("float32", (2,))}


def advance(block, operands):
    alpha = block.columns["alpha"] + block.X.sum(axis=1) + block.index
    return {"alpha": alpha, "total": np.array([alpha.sum()])}


def fail(block, operands):
    if block.index == 8:
        raise ValueError("broken")
    return advance(block, operands)


def game(function=advance) -> BlockSum:
    return BlockSum("game", function, {"total": Accumulator((1,))}, reads=("alpha",), writes={"alpha": "float64"})


def rounds_by_definition(n: int) -> list[np.ndarray]:
    columns = [np.zeros(rows) for rows in SOURCE.rows]
    for _ in range(n):
        for index, rows in enumerate(SOURCE.rows):
            columns[index] = columns[index] + make_block(index, rows).X.sum(axis=1) + index
    return columns


def assert_column(columns: RowColumns, n: int) -> None:
    for got, expected in zip(columns.column("alpha"), rounds_by_definition(n), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("where", ["threads", "cluster"])
def test_rounds_read_what_the_last_one_wrote(tmp_path, where, request):
    if where == "cluster":
        request.getfixturevalue("client")
    columns = RowColumns.create(str(tmp_path / "columns"), SOURCE, COLUMNS)
    for done in range(3):
        assert_column(columns, done)
        result = run_pass(SOURCE, (game(),), columns=columns)
        columns = result.columns
        assert columns.version == done + 1
    assert_column(columns, 3)
    np.testing.assert_allclose(result.results[0]["total"], np.concatenate(rounds_by_definition(3)).sum())


def arrays_of(store) -> list[str]:
    return sorted(f"{version}/{name}" for version, group in zarr.open_group(store).groups() for name in group)


def test_one_version_of_each_column_is_kept_and_an_untouched_one_stays_where_it_is(tmp_path):
    columns = RowColumns.create(str(tmp_path), SOURCE, COLUMNS)
    columns = run_pass(SOURCE, (game(),), columns=columns).columns
    assert arrays_of(tmp_path) == ["0/pair", "1/alpha"]
    assert columns.values("pair", 1).shape == (SOURCE.rows[1], 2)
    assert not columns.values("pair", 1).any()
    columns = run_pass(SOURCE, (game(),), columns=columns).columns
    assert arrays_of(tmp_path) == ["0/pair", "2/alpha"]


def test_the_version_before_is_kept_until_the_next_is_begun(tmp_path):
    columns = replace(RowColumns.create(str(tmp_path), SOURCE, COLUMNS), keeps_last=True)
    for _ in range(2):
        columns = run_pass(SOURCE, (game(),), columns=columns).columns
    assert_column(RowColumns.open(str(tmp_path), SOURCE), 2)
    assert_column(columns.at(1), 1)
    columns.prepare({"alpha": "float64"})
    with pytest.raises(StoreError, match="holds row columns at version 2, the run was at version 1"):
        columns.at(1)


def test_the_driver_touches_no_chunk(tmp_path):
    many = Source([1] * 3_000)
    columns = RowColumns.create(str(tmp_path), many, COLUMNS)
    columns.prepare({"alpha": "float64"})
    columns.commit()
    assert not [name for _, _, files in os.walk(tmp_path) for name in files if name != "zarr.json"]


class Elsewhere:
    """A client of two hosts, of which the second does not see the driver's disk."""

    def nthreads(self):
        return {"tcp://10.0.0.1:41": 1, "tcp://10.0.0.1:42": 1, "tcp://10.0.0.2:41": 1}

    def run(self, function, path, workers, on_error):
        assert len(workers) == 2
        return {worker: function(path) and "10.0.0.1" in worker for worker in workers}


def test_a_folder_that_a_worker_does_not_see_is_refused_before_the_first_pass(tmp_path, monkeypatch, client):
    check_reach(str(tmp_path))
    monkeypatch.setattr(loop, "current_client", Elsewhere)
    with pytest.raises(StoreError, match=r"which the worker tcp://10\.0\.0\.2:41 does not see; pass checkpoint="):
        check_reach(str(tmp_path))
    check_reach("s3://bucket/columns")


def test_a_game_says_so_before_the_passes_that_prepare_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "current_client", Elsewhere)
    X = np.random.default_rng(0).normal(size=(60, 2))
    heard = []
    for checkpoint in (None, str(tmp_path / "state")):
        game = dkl.MarginFeatures(n_features=4, solver="game", checkpoint=checkpoint, progress=heard.append)
        with pytest.raises(StoreError, match=r"which the worker tcp://10\.0\.0\.2:41 does not see"):
            game.fit(X, X[:, 0] > 0)
    assert heard == []


def test_columns_of_an_older_version_open(tmp_path):
    """dkl 0.1 had every column in every version, and no note of who wrote it."""
    columns = RowColumns.create(str(tmp_path), SOURCE, {"alpha": COLUMNS["alpha"]})
    columns = run_pass(SOURCE, (game(),), columns=columns).columns
    del zarr.open_group(tmp_path).attrs["dkl-written"]
    again = RowColumns.open(str(tmp_path), SOURCE)
    assert_column(again, 1)
    assert_column(run_pass(SOURCE, (game(),), columns=again).columns, 2)


def test_a_broken_round_leaves_the_last_one(tmp_path):
    columns = RowColumns.create(str(tmp_path), SOURCE, COLUMNS)
    columns = run_pass(SOURCE, (game(),), columns=columns).columns
    with dask.config.set(scheduler="threads"), pytest.raises(ValueError, match="broken"):
        run_pass(SOURCE, (game(fail),), columns=columns)
    again = RowColumns.open(str(tmp_path), SOURCE)
    assert again == columns
    assert_column(run_pass(SOURCE, (game(),), columns=again).columns, 2)


def test_columns_that_exist_are_not_made_over(tmp_path):
    RowColumns.create(str(tmp_path), SOURCE, COLUMNS)
    with pytest.raises(FileExistsError, match=r"holds row columns already; open them with RowColumns\.open"):
        RowColumns.create(str(tmp_path), SOURCE, COLUMNS)


def test_an_incomplete_store_is_refused(tmp_path):
    with pytest.raises(StoreError, match="holds no complete row columns"):
        RowColumns.open(str(tmp_path / "nothing"), SOURCE)


def test_a_record_with_columns_needs_a_place_for_them():
    with pytest.raises(ValueError, match=r"'game' reads or writes row columns: pass columns=RowColumns\.create"):
        run_pass(SOURCE, (game(),))


def short(block, operands):
    return {"alpha": np.zeros(1), "total": np.zeros(1)}


def test_a_column_of_the_wrong_length_names_the_block(tmp_path):
    columns = RowColumns.create(str(tmp_path), SOURCE, COLUMNS)
    with pytest.raises(ValueError, match=r"'alpha' has 1 rows for block \d+; expected \d+") as caught:
        run_pass(SOURCE, (game(short),), columns=columns)
    assert caught.value.__notes__[0].startswith("at block")

"""Random writes, failures, splits, versions, damage and stale handles leave what a model in memory says."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scipy import sparse

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.schema import Schema
from dkl.data.store.writer import DatasetWriter
from dkl.errors import CorruptChunkError, StoreReplacedError, TableDifferenceWarning

NAMES = st.sampled_from(["one", "two"])
KINDS = st.sampled_from(["dense", "sparse", "codes"])
VALUES = 40


def given_as(rows: np.ndarray, kind: str) -> Any:
    """Rows in the form that a user has; of codes the values are texts, those beyond the first 40 unknown to a store."""
    if kind == "sparse":
        return sparse.csr_array(rows)
    if kind == "dense":
        return rows
    return pd.DataFrame({"number": rows[:, 0], "text": [f"value {int(code) - 1:02d}" for code in rows[:, 1]]})


def write_and_fail(writer: DatasetWriter, rows: np.ndarray) -> None:
    with writer:
        writer.write(rows)
        raise ZeroDivisionError


class Stores(RuleBasedStateMachine):
    """Two stores and, for each, the rows and splits that it must hold."""

    @initialize(is_local=st.booleans())
    def start(self, is_local: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dkl-machine-"))
        self.root = str(self.folder) if is_local else f"memory:/{self.folder}"
        self.rows: dict[str, np.ndarray] = {}
        self.ids: dict[str, np.ndarray] = {}
        self.versions: dict[str, int] = {}
        self.kinds: dict[str, str] = {}
        self.splits: dict[str, dict[str, set[int]]] = {}
        self.replacements: dict[str, int] = {"one": 0, "two": 0}
        self.handles: list[tuple[str, int, Dataset]] = []

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    def store(self, name: str) -> str:
        return f"{self.root}/{name}.zarr"

    @rule(name=NAMES, n=st.integers(2, 30), cut=st.integers(1, 9), seed=st.integers(0, 99), kind=KINDS)
    def create(self, name: str, n: int, cut: int, seed: int, kind: str) -> None:
        rows = np.random.default_rng(seed).integers(0, 3, (n, 4)).astype(np.float32)
        told = {}
        if kind == "codes":
            # every value is there, so that the column becomes one of codes
            code = np.append(np.arange(VALUES), np.random.default_rng(seed).integers(0, VALUES, n)) + 1
            rows, told = np.column_stack([np.arange(len(code)) % 3, code]).astype(np.float32), {"categorical": ["text"]}
        given = given_as(rows, kind)
        if name in self.rows:
            with pytest.raises(FileExistsError, match="overwrite=True"):
                create_dataset(self.store(name), given, **told)
        create_dataset(self.store(name), given, overwrite=name in self.rows, rows_a_block=cut, **told)
        self.rows[name], self.ids[name], self.kinds[name] = rows, np.arange(len(rows)), kind
        self.splits[name], self.versions[name] = {}, 0
        self.replacements[name] += 1

    @precondition(lambda self: getattr(self, "rows", None))
    @rule(data=st.data())
    def keep_open(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        self.handles.append((name, self.replacements[name], open_dataset(self.store(name))))

    @precondition(lambda self: getattr(self, "handles", None))
    @rule(data=st.data(), what=st.sampled_from(["append", "drop", "split", "read", "overwrite"]))
    def use_what_was_kept_open(self, data: st.DataObject, what: str) -> None:
        """A handle whose store was replaced, or has a newer version, changes nothing and reads nothing of another."""
        name, replacement, ds = data.draw(st.sampled_from(self.handles))
        attempt = {
            "append": lambda: ds.append(ds.X.blocks[0].compute(), split=() if ds.splits else None),
            "drop": lambda: ds.drop([0]),
            "split": lambda: ds.split({"late": [0]}, name="late"),
            "read": lambda: [ds.source.reader().load(ds.source.ticket(i)) for i in range(ds.source.n_blocks)],
            # a dataset with splits is used whole with a warning; this one is not asked for its splits
            "overwrite": lambda: create_dataset(self.store(name), Dataset(ds.source, ds.schema), overwrite=True),
        }[what]
        if replacement < self.replacements[name]:
            if what == "split" and ds.version:
                return
            with pytest.raises(StoreReplacedError):
                attempt()
        elif ds.version < self.versions[name] and what in ("append", "overwrite"):
            with pytest.raises(FileExistsError, match="newer version"):
                attempt()
        elif what == "read":
            attempt()

    @precondition(lambda self: any(getattr(self, "versions", {}).values()))
    @rule(data=st.data(), how=st.sampled_from(["lost", "cut", "a bit"]))
    def damage_a_version(self, data: st.DataObject, how: str) -> None:
        """The record of a version that is damaged is missed, whichever it is; restored, all is as it was."""
        name = data.draw(st.sampled_from([name for name, version in sorted(self.versions.items()) if version]))
        number = data.draw(st.integers(1, self.versions[name]))
        fs, path = fsspec.core.url_to_fs(f"{self.store(name)}/versions/{number:06d}/zarr.json")
        before = fs.cat_file(path)
        if how == "lost":
            fs.rm_file(path)
        else:
            # what zarr keeps after the attributes is not needed to read a version
            place = data.draw(st.integers(before.index(b'"dkl"'), before.index(b'"zarr_format"')))
            damaged = before[:place] if how == "cut" else before[:place] + b"#" + before[place + 1 :]
            fs.pipe_file(path, damaged)
        with pytest.raises(CorruptChunkError, match=f"versions/{number:06d}"):
            open_dataset(self.store(name))
        assert open_dataset(self.store(name), number - 1).version == number - 1
        fs.pipe_file(path, before)

    @rule(name=NAMES, blocks=st.integers(0, 3))
    def fail_to_create(self, name: str, blocks: int) -> None:
        if self.root.startswith("memory:") and name in self.rows:
            return
        writer = DatasetWriter(
            self.store(name), Schema(n_columns=2, dtype=np.dtype("f4")), overwrite=True, rows_a_block=5
        )
        with pytest.raises(ZeroDivisionError):
            write_and_fail(writer, np.ones((5 * blocks, 2)))

    @precondition(lambda self: getattr(self, "rows", None))
    @rule(data=st.data(), seed=st.integers(0, 9), label=st.sampled_from(["first", "second"]))
    def split(self, data: st.DataObject, seed: int, label: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        if self.versions[name]:
            return
        inside = np.random.default_rng(seed).random(len(self.rows[name])) < 0.5
        inside[0] = True
        open_dataset(self.store(name)).split({label: inside}, name=label, overwrite=True)
        self.splits[name][label] = set(self.ids[name][inside].tolist())

    @precondition(lambda self: getattr(self, "rows", None))
    @rule(data=st.data(), n=st.integers(1, 12), seed=st.integers(0, 99))
    def append(self, data: st.DataObject, n: int, seed: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        rows = np.random.default_rng(seed).integers(0, 3, (n, 4)).astype(np.float32)
        if self.kinds[name] == "codes":
            # two values more than the store has seen
            rows = np.random.default_rng(seed).integers(1, VALUES + 3, (n, 2)).astype(np.float32)
        given = given_as(rows, self.kinds[name])
        joined = data.draw(st.sampled_from([None, *self.splits[name]]))
        split = None if not self.splits[name] else () if joined is None else joined
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TableDifferenceWarning)
            open_dataset(self.store(name)).append(given, split=split)
        if self.kinds[name] == "codes":
            rows[rows[:, 1] > VALUES, 1] = 0
        self.versions[name] += 1
        ids = self.versions[name] * 2**40 + np.arange(n)
        self.rows[name], self.ids[name] = np.concatenate([self.rows[name], rows]), np.append(self.ids[name], ids)
        if joined is not None:
            self.splits[name][joined] |= set(ids.tolist())

    @precondition(lambda self: getattr(self, "rows", None))
    @rule(data=st.data(), seed=st.integers(0, 99), share=st.sampled_from([0.2, 0.9]))
    def drop(self, data: st.DataObject, seed: int, share: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.rows)))
        gone = np.random.default_rng(seed).random(len(self.rows[name])) < share
        if gone.all() or not gone.any():
            return
        open_dataset(self.store(name)).drop(gone)
        self.versions[name] += 1
        self.rows[name], self.ids[name] = self.rows[name][~gone], self.ids[name][~gone]

    @invariant()
    def stores_hold_what_was_written(self) -> None:
        for name in ("one", "two") if hasattr(self, "rows") else ():
            if name not in self.rows:
                with pytest.raises(FileNotFoundError):
                    open_dataset(self.store(name))
                continue
            ds = open_dataset(self.store(name))
            assert ds.verify() == []
            assert ds.schema.has_codes == (self.kinds[name] == "codes")
            assert ds.version == self.versions[name]
            assert set(ds.splits) == set(self.splits[name])
            blocks = [ds.source.reader().load(ds.source.ticket(i)).X for i in range(ds.source.n_blocks)]
            found = np.concatenate([b.toarray() if sparse.issparse(b) else b for b in blocks])
            assert np.array_equal(found, self.rows[name])
            for label, inside in self.splits[name].items():
                ids = np.concatenate([block.row_id for block in ds[label].source.blocks_without_x()])
                assert ids.tolist() == [one for one in self.ids[name].tolist() if one in inside]
                assert ds[label].n_rows == len(ids)


TestStores = Stores.TestCase
TestStores.settings = settings(max_examples=6, stateful_step_count=8, deadline=None)

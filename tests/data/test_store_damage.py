"""A lost or damaged record of a store is said, whichever it is, and never rolls the store back in silence."""

from __future__ import annotations

import contextlib
import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.store.digests import json_digest
from dkl.data.store.location import Location
from dkl.data.store.reader import OpenStore
from dkl.data.store.stored_splits import whole_split
from dkl.data.store.version_files import check_version
from dkl.data.verification import faults
from dkl.errors import CorruptChunkError, StoreError, TableDifferenceWarning

WRITTEN = Path(__file__).parent / "written_by"


def rows(n: int, start: int = 0) -> np.ndarray:
    """Small numbers from sums alone: any release makes the same ones."""
    i, j = np.arange(start, start + n)[:, None], np.arange(5)
    return ((7 * i + 3 * j * j + i * j) % 11 % 4).astype(np.float32)


def frame(n: int, start: int = 0) -> pd.DataFrame:
    i = np.arange(start, start + n)
    return pd.DataFrame({"colour": np.array(["red", "blue", "green"])[i * 5 % 7 % 3], "size": i * 3 % 13 / 4})


def labels(n: int, start: int = 0) -> np.ndarray:
    return np.array(["no", "yes"])[np.arange(start, start + n) * 3 % 7 % 2]


def weights(n: int, start: int = 0) -> np.ndarray:
    return (np.arange(start, start + n) % 3 + 1).astype(float)


def contents(ds: Dataset) -> list[object]:
    """What users see of a dataset: rows, targets, weights, ids, splits, names, encoding."""
    X = ds.X.compute()
    parts = [X.toarray() if sparse.issparse(X) else X, ds.row_id.compute()]
    parts += [None if part is None else part.compute() for part in (ds.y, ds.sample_weight)]
    held = {name: (len(ds[name]), ds[name].row_id.compute().tolist()) for name in ds.splits}
    encoding = None if ds.encoding is None else json.dumps(ds.encoding.to_json(), sort_keys=True)
    return [*(None if part is None else part.tolist() for part in parts), held, ds.column_names, ds.version, encoding]


@pytest.mark.parametrize("kind", ["frame", "sparse"])
def test_a_store_of_format_1_as_the_first_release_wrote_it_opens_and_grows(tmp_path: Path, kind: str) -> None:
    store = shutil.copytree(WRITTEN / "format_1" / f"{kind}.zarr", tmp_path / "rows.zarr")
    ds = open_dataset(store)
    left = np.setdiff1d(np.arange(37), [0, 4, 30])
    X, y, weight = ds.X.compute(), ds.y.compute(), ds.sample_weight.compute()
    if kind == "sparse":
        assert np.array_equal(X.toarray(), rows(37)[left])
    else:
        table = frame(37).iloc[left]
        for name in ("blue", "green", "red"):
            assert np.array_equal(X[:, ds.column_names.index(f"colour={name}")], table["colour"] == name)
        assert np.array_equal(X[:, ds.column_names.index("size")], table["size"].astype(np.float32))
    assert np.array_equal(y, labels(37)[left])
    assert np.array_equal(weight, weights(37)[left])
    ids = np.r_[np.arange(25), 2**40 + np.arange(12)][left]
    train = (left % 3 != 0) | (left >= 25)
    assert np.array_equal(ds["train"].row_id.compute(), ids[train])
    assert np.array_equal(ds["test"].row_id.compute(), ids[~train])
    assert ds.verify() == []
    further = sparse.csr_array(rows(5)) if kind == "sparse" else frame(5)
    more = ds.append(further, labels(5), sample_weight=weights(5), split="test")
    assert (more.version, more.n_rows, len(more["test"])) == (3, 39, len(ds["test"]) + 5)
    assert more.drop([1]).verify() == []


def coded(n: int, start: int = 0) -> pd.DataFrame:
    """A table with 37 values in a column, which becomes one of codes."""
    i = np.arange(start, start + n)
    return frame(n, start).assign(town=[f"town {number:02d}" for number in i * 11 % 37])


def test_a_store_of_format_2_as_it_was_first_written_opens_and_grows(tmp_path: Path) -> None:
    """Codes are one plus the place of a value among the sorted ones; values that come later have none."""
    store = shutil.copytree(WRITTEN / "format_2" / "codes.zarr", tmp_path / "rows.zarr")
    assert json.loads((store / "zarr.json").read_text())["attributes"]["dkl"]["format"] == 2
    ds = open_dataset(store)
    (rule,) = [rule for rule in ds.encoding.rules if rule.kind == "code"]
    assert rule.categories == tuple(f"town {number:02d}" for number in range(37))
    codes = ds.X.compute()[:, ds.column_names.index("town")]
    left = np.setdiff1d(np.arange(90), [0, 4, 77])
    assert np.array_equal(codes, left * 11 % 37 + 1)
    assert np.array_equal(ds.y.compute(), labels(90)[left])
    assert ds.verify() == []
    with pytest.warns(TableDifferenceWarning, match="such as 'elsewhere'"):
        more = ds.append(coded(5).assign(town=["elsewhere", *coded(4)["town"]]), labels(5), split="test")
    assert np.array_equal(more.X.compute()[-5:, ds.column_names.index("town")], [0, 1, 12, 23, 34])
    assert more.drop([1]).verify() == []


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of table rows with splits, appended and dropped rows; of format 1, and of format 2 with its codes."""
    path = tmp_path_factory.mktemp("whole") / "rows.zarr"
    made, n = (coded, 60) if getattr(request, "param", "one-hot") == "codes" else (frame, 9)
    ds = create_dataset(path, made(n), labels(n), rows_a_block=n - 3).split({"train": 0.6, "test": 0.4})
    ds.append(made(4, 9), labels(4, 9), split="train").drop([0, 10]).append(made(2), labels(2), split=())
    return path


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "rows.zarr")


def lose_marker(path: Path) -> None:
    (path / "zarr.json").unlink()


def empty_marker(path: Path) -> None:
    (path / "zarr.json").write_bytes(b"")


def halve_marker(path: Path) -> None:
    text = (path / "zarr.json").read_bytes()
    (path / "zarr.json").write_bytes(text[: len(text) // 2])


def forget_attributes(path: Path) -> None:
    (path / "zarr.json").write_text('{"attributes": {}, "zarr_format": 3, "node_type": "group"}')


def rename_mark(path: Path) -> None:
    (path / "zarr.json").write_text((path / "zarr.json").read_text().replace('"dkl"', '"ekl"'))


def rename_state(path: Path) -> None:
    (path / "zarr.json").write_text((path / "zarr.json").read_text().replace('"complete"', '"complste"'))


def list_instead(path: Path) -> None:
    (path / "zarr.json").write_text("[1, 2]")


def other_digest(path: Path) -> None:
    text = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(text.replace('"token": "', '"token": "0'))


def empty_folder(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()


RECORD_FAULTS = [
    *(lose_marker, empty_marker, halve_marker, forget_attributes, rename_mark),
    *(rename_state, list_instead, other_digest, empty_folder, shutil.rmtree),
]


# One function opens all records: those of versions and splits meet a fault of each kind, the store's own meets all.
FAULTS_OF_A_KIND = [lose_marker, halve_marker, rename_mark, other_digest, shutil.rmtree]
# The three versions, the newest first, meet the faults in turn: records are alike whatever their number.
VERSION_FAULTS = [(3 - place % 3, fault) for place, fault in enumerate(FAULTS_OF_A_KIND)]


@pytest.mark.parametrize(("number", "fault"), VERSION_FAULTS, ids=lambda one: getattr(one, "__name__", str(one)))
def test_a_lost_version_is_said_with_the_remedy_and_nothing_is_added_behind_it(store, number, fault) -> None:
    newest, before = open_dataset(store), open_dataset(store, number - 1)
    truth = contents(before)
    fault(store / f"versions/00000{number}")
    with pytest.raises(CorruptChunkError, match=rf"versions/00000{number}.*version={number - 1}\)\)") as caught:
        open_dataset(store)
    assert "Restore" in str(caught.value)
    for handle in (newest, before):
        assert any(f"00000{number}" in sentence for sentence in handle.verify())
    # the version before it is what the remedy says
    again = open_dataset(store, number - 1)
    assert contents(again) == truth
    for change in (lambda: again.append(frame(2), labels(2), split=()), lambda: again.drop([0])):
        with pytest.raises(FileExistsError, match="newer version"):
            change()
    with pytest.warns(UserWarning, match="has splits and is used whole"):
        assert create_dataset(store.parent / "other.zarr", again).n_rows == again.n_rows


@pytest.mark.parametrize("fault", FAULTS_OF_A_KIND, ids=lambda fault: fault.__name__)
def test_splits_that_are_lost_are_said_and_drawn_again_they_are_back(store: Path, fault) -> None:
    truth = contents(open_dataset(store))
    fault(store / "splits/split")
    with pytest.raises(CorruptChunkError, match=r"splits.*(Restore|restore)"):
        open_dataset(store)
    shutil.rmtree(store / "splits/split", ignore_errors=True)
    open_dataset(store, 0).split({"train": 0.6, "test": 0.4})
    assert contents(open_dataset(store)) == truth


def test_splits_under_the_name_of_other_splits_are_refused(tmp_path: Path) -> None:
    ds = create_dataset(tmp_path / "rows.zarr", rows(30), labels(30))
    ds.split({"train": 0.5, "test": 0.5}, name="one")
    ds.split({"train": 0.5, "test": 0.5}, name="other", seed=1)
    for old, new in (("one", "aside"), ("other", "one"), ("aside", "other")):
        (tmp_path / "rows.zarr/splits" / old).rename(tmp_path / "rows.zarr/splits" / new)
    with pytest.raises(CorruptChunkError, match=r"rows\.zarr/splits/one' were written as the set 'other'"):
        open_dataset(tmp_path / "rows.zarr")


@pytest.mark.parametrize("fault", RECORD_FAULTS, ids=lambda fault: fault.__name__)
def test_a_store_without_its_own_record_does_not_open(store: Path, fault) -> None:
    fault(store)
    with pytest.raises((StoreError, FileNotFoundError)):
        open_dataset(store)


@pytest.mark.parametrize(
    ("fact", "values"),
    [
        (("format",), [None, "1", -1, 0]),
        (("token",), [None, []]),
        (("stored_nbytes",), [None, "x", []]),
        (("rows_a_block",), [None, "x", []]),
        (("arrays", "X", "codecs"), [None, 7, [None], [7]]),
        (("schema", "n_columns"), [None, "x", -1, 10**30, True]),
        (("schema", "n_targets"), ["x", -1, 10**30]),
        (("schema", "has_weight"), [None, []]),
        (("schema", "provenance"), [None, "x", 7]),
        (("schema", "classes", "values"), [7, []]),
    ],
    ids=lambda given: ".".join(given) if isinstance(given, tuple) else "",
)
def test_a_fact_of_another_type_is_damage_whoever_signed_it(store: Path, fact: tuple[str, ...], values: list) -> None:
    text = (store / "zarr.json").read_text()
    for value in values:
        node = json.loads(text)
        signed = facts = node["attributes"]["dkl"]
        state = facts.pop("state")
        del facts["digest"]
        for name in fact[:-1]:
            facts = facts[name]
        facts[fact[-1]] = value
        node["attributes"]["dkl"] = {**signed, "digest": json_digest(signed), "state": state}
        (store / "zarr.json").write_text(json.dumps(node))
        with pytest.raises(StoreError):
            open_dataset(store).describe()
        with pytest.raises(StoreError):
            open_dataset(store, version=0).describe()


@pytest.mark.parametrize(
    ("group", "fault"),
    [("versions", lose_marker), ("versions", list_instead), ("splits", halve_marker)],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_damaged_group_around_versions_or_splits_is_listed(store: Path, group: str, fault) -> None:
    truth = contents(open_dataset(store))
    fault(store / group)
    ds = open_dataset(store)
    assert contents(ds) == truth
    assert any(f"/{group}'" in sentence for sentence in ds.verify())


def test_a_folder_of_another_name_among_the_versions_is_no_version(store: Path) -> None:
    (store / "versions/notes").mkdir()
    (store / "versions/000002.bak").mkdir()
    ds = open_dataset(store)
    assert (ds.version, ds.verify()) == (3, [])


def flip(file: Path, position: int, mask: int) -> bytes:
    before = file.read_bytes()
    damaged = bytearray(before)
    damaged[position] ^= mask
    file.write_bytes(bytes(damaged))
    return before


def check_flip(store: Path, truth: list[object], file: Path, position: int, mask: int) -> None:
    """The flip is said by opening or by `verify`, as a StoreError is; or what opens in spite of it is what it was."""
    before = flip(file, position, mask)
    where = f"byte {position} of {file.relative_to(store)} with {mask:08b}"
    try:
        ds = open_dataset(store)
        if next(faults(ds.source), None) is None:
            assert contents(ds) == truth, f"{where} changed what is read, and was not found"
    except StoreError:
        pass
    file.write_bytes(before)


def metadata_files(store: Path) -> list[Path]:
    """Every file that holds no rows."""
    files = [file for file in sorted(store.rglob("*")) if file.is_file()]
    return [f for f in files if f.name == "zarr.json" or "manifest" in f.parts or "versions/000002" in f.as_posix()]


def is_of_an_array(file: Path) -> bool:
    return file.name != "zarr.json" or json.loads(file.read_text())["node_type"] == "array"


@pytest.mark.parametrize("whole", [pytest.param("one-hot", marks=pytest.mark.slow), "codes"], indirect=True)
def test_flips_of_metadata_are_found_or_change_nothing(store: Path) -> None:
    truth, rng = contents(open_dataset(store)), np.random.default_rng(0)
    files = metadata_files(store)
    assert len(files) > 60
    for file in [*files[::16], *[file for file in files if not is_of_an_array(file)]]:
        check_flip(store, truth, file, int(rng.integers(file.stat().st_size)), int(rng.integers(1, 256)))
    assert open_dataset(store).verify() == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("bits", ["one", "several"])
@pytest.mark.parametrize("whole", ["one-hot", "codes"], indirect=True)
def test_a_flip_of_any_byte_of_a_record_is_found_or_changes_nothing(store: Path, bits: str) -> None:
    truth, rng = contents(open_dataset(store)), np.random.default_rng(len(bits))
    for file in metadata_files(store):
        if is_of_an_array(file):
            continue
        for position in range(file.stat().st_size):
            mask = 1 << int(rng.integers(8)) if bits == "one" else int(rng.integers(1, 256))
            check_flip(store, truth, file, position, mask)
    assert open_dataset(store).verify() == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_flip_of_any_byte_of_the_metadata_of_an_array_is_found(store: Path) -> None:
    place, rng = Location.of(store), np.random.default_rng(0)
    token = OpenStore(place).token
    stores = {folder: OpenStore(Location.of(store / folder)) for folder in (".", "versions/000001", "versions/000003")}

    def check(file: Path) -> object:
        """What `verify` asks of the part of the store that the file belongs to."""
        path = file.relative_to(store).as_posix()
        if path.startswith("splits"):
            return whole_split(place.child("splits", "split"))
        if path.startswith("versions/000002"):
            return check_version(place, 2, token)
        folder = next(name for name in sorted(stores, reverse=True) if name == "." or path.startswith(name))
        if file.name != "zarr.json":
            return OpenStore(stores[folder].location)
        return stores[folder].check_nodes()

    for file in filter(is_of_an_array, metadata_files(store)):
        for position in range(file.stat().st_size):
            before = flip(file, position, int(rng.integers(1, 256)))
            with pytest.raises(StoreError):
                check(file)
            file.write_bytes(before)
    assert open_dataset(store).verify() == []


def all_kinds(n: int, start: int = 0) -> pd.DataFrame:
    """A table with two columns of codes and one of free text."""
    i, rng = np.arange(start, start + n), np.random.default_rng(start)
    notes = [" ".join(f"word{number}" for number in rng.choice(40, 9)) for _ in i]
    return coded(n, start).assign(street=[f"street {number:02d}" for number in i * 7 % 41], note=notes)


@pytest.fixture(scope="module")
def all_arrays(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[object]]:
    """A store with every kind of array (codes, weights, groups, texts, splits, versions), one of shards; their rows."""
    path = tmp_path_factory.mktemp("arrays") / "rows.zarr"
    i = np.arange(120)
    told = {"sample_weight": weights(120), "groups": i % 9}
    ds = create_dataset(path, all_kinds(120), labels(120), rows_a_block=50, **told).split({"train": 0.6, "test": 0.4})
    more = {"sample_weight": weights(8, 120), "groups": i[:8]}
    ds.append(all_kinds(8, 120), labels(8, 120), split="train", **more).drop([0, 10])
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dkl.data.store.block_arrays._MANY_BLOCKS", 2)
        patched.setattr("dkl.data.store.block_arrays._MOST_IN_A_SHARD", 2)
        sharded = path.parent / "sharded.zarr"
        create_dataset(sharded, rows(200), labels(200), rows_a_block=50).split({"train": 0.6})
    return {path: read_all(path), sharded: read_all(sharded)}


def chunk_shape(node: dict, *shape: int) -> None:
    node["chunk_grid"]["configuration"]["chunk_shape"] = list(shape)


def enlarge(node: dict) -> None:
    """One chunk of eight terabytes or more."""
    node["shape"][0] = 10**12
    chunk_shape(node, *node["shape"])


def huge_shape(node: dict) -> None:
    node["shape"][0] = 10**12


def huge_chunk(node: dict) -> None:
    chunk_shape(node, 10**12, *node["shape"][1:])


METADATA_EDITS: dict[str, Callable[[dict], object]] = {
    "a row more": lambda node: node["shape"].__setitem__(0, node["shape"][0] + 1),
    "a row less": lambda node: node["shape"].__setitem__(0, node["shape"][0] - 1),
    "an axis more": lambda node: (node["shape"].append(1), chunk_shape(node, *node["shape"])),
    "a huge shape": huge_shape,
    "a huge chunk": huge_chunk,
    "a huge chunk of a huge shape": enlarge,
    "chunks of a row": lambda node: chunk_shape(node, *([1] * len(node["shape"]))),
    "no shape": lambda node: node.pop("shape"),
    "another grid": lambda node: node["chunk_grid"].update(name="rectilinear"),
    "another dtype of the same bytes": lambda node: node.update(
        data_type={"float32": "int32", "float64": "int64", "int64": "float64", "uint32": "float32"}.get(
            node["data_type"], "int8"
        )
    ),
    "a dtype that is none": lambda node: node.update(data_type="nothing"),
    "the other order of bytes": lambda node: node["codecs"].__setitem__(
        0, {"name": "bytes", "configuration": {"endian": "big"}}
    ),
    "a codec more": lambda node: node["codecs"].append({"name": "gzip", "configuration": {"level": 1}}),
    "no codecs": lambda node: node.update(codecs=[]),
    "another fill value": lambda node: node.update(fill_value=3),
    "another place of chunks": lambda node: node["chunk_key_encoding"]["configuration"].update(separator="."),
    "attributes": lambda node: node.update(attributes={"scale_factor": 2.0, "add_offset": 1.0}),
    "a field more": lambda node: node.update(more={"must_understand": False}),
    "a field more that must be understood": lambda node: node.update(more=1),
    "a group": lambda node: node.update(node_type="group"),
}


# What asks for more memory than there is, whose peak is looked at: to trace it takes twice the time of the rest.
HUGE = (huge_shape, huge_chunk, enlarge)


def read_all(store: Path) -> list[object]:
    """What users see, and the directions of free text, groups and other columns of the rows."""
    ds = open_dataset(store)
    source, names = ds.source, tuple(ds.schema.row_columns)
    blocks = [source.reader().load(source.ticket(i), names) for i in range(source.n_blocks)]
    directions = getattr(ds.encoding, "directions", ())
    return [*contents(ds), [[block.columns[name].tolist() for name in names] for block in blocks], repr(directions)]


@pytest.mark.parametrize("edit", METADATA_EDITS)
def test_metadata_of_an_array_that_was_changed_is_named_and_gives_no_other_rows(
    edit: str, all_arrays: dict[Path, list[object]]
) -> None:
    mixed, sharded = all_arrays
    arrays = [(mixed, name) for name in ("X", "y", "sample_weight", "row_id", "group", "texts/0-1-components")]
    arrays += [(mixed, f"manifest/{name}") for name in ("rows", "weights", "class_weights", "digest-X")]
    arrays += [(mixed, f"splits/split/{name}") for name in ("codes", "manifest/rows", "manifest/digests")]
    arrays += [(mixed, f"versions/{name}") for name in ("000001/X", "000001/manifest/digest-X", "000002/rows/kept")]
    arrays += [(sharded, name) for name in ("X", "row_id", "manifest/digest-X", "splits/split/codes")]
    # in turn: each array meets an edit, each edit an array
    for store, array in arrays[list(METADATA_EDITS).index(edit) % len(arrays) :: len(METADATA_EDITS)]:
        file = store / array / "zarr.json"
        before = file.read_bytes()
        node = json.loads(before)
        METADATA_EDITS[edit](node)
        assert node != json.loads(before)
        file.write_text(json.dumps(node))
        with contextlib.ExitStack() as traced:
            if METADATA_EDITS[edit] in HUGE:
                tracemalloc.start()
                traced.callback(tracemalloc.stop)
            traced.callback(file.write_bytes, before)
            found: list[str] = []
            try:
                found = open_dataset(store).verify()
            except StoreError as error:
                found = [str(error)]
            try:
                assert read_all(store) == all_arrays[store], array
            except StoreError as error:
                found.append(str(error))
            assert any(array.rpartition("/")[2] + "/zarr.json'" in sentence for sentence in found), (array, found)
            # directions of texts are the largest array: 256 KiB
            assert tracemalloc.get_traced_memory()[1] < 32 << 20, array

"""Sums of sites that agreed beforehand give the bits of a fit to all their rows; what would not is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.data.dataset import Dataset
from dkl.data.schema import Schema
from dkl.errors import StoreError
from dkl.federated.exporting import SiteSums
from dkl.passes.tree_sum import Node, TreeSum, root
from dkl.registry import LEARNERS as REGISTERED

RNG = np.random.default_rng(0)
X = RNG.normal(size=(330, 3)).astype(np.float32)
LABELS = np.where(np.sin(2.0 * X[:, 0]) + 0.1 * RNG.normal(size=330) > 0, "up", "down")
NUMBERS = 1e4 + np.sin(2.0 * X[:, 0]).astype(np.float64)
SITES = {"north": slice(0, 150), "south": slice(150, 210), "west": slice(210, 330)}
SMALL: dict[str, Any] = {"family": dkl.Gaussian(sigma=1.0), "random_state": 0, "progress": False}

LEARNERS: dict[str, tuple[Any, np.ndarray, tuple[str, ...]]] = {
    "aligned": (
        dkl.AlignedFeatures(n_candidates=64, n_features=20, **SMALL),
        LABELS,
        ("alignment_", "weights_", "frequencies_", "total_weight_"),
    ),
    "posterior": (
        dkl.PosteriorFeatures(n_candidates=64, n_features=20, **SMALL),
        LABELS,
        ("losses_", "weights_", "frequencies_"),
    ),
    "leverage": (
        dkl.LeverageFeatures(n_candidates=30, n_features=20, **SMALL),
        LABELS,
        ("scores_", "frequencies_", "degrees_of_freedom_"),
    ),
    "tuned": (
        dkl.TunedClassifier(n_features=24, loss="squared_error", **SMALL),
        LABELS,
        ("coef_", "intercept_", "density_", "objective_"),
    ),
}
# What an agreement settles on its own rows: the reference is the agreed learner's update.
SETTLED: dict[str, tuple[Any, np.ndarray, tuple[str, ...]]] = {
    "scaling and bandwidth": (
        dkl.AlignedFeatures(n_candidates=64, n_features=20, scaling="standard", random_state=0, progress=False),
        LABELS,
        ("alignment_", "weights_", "frequencies_"),
    ),
    "centroids": (
        dkl.LandmarkFeatures(n_landmarks=4, n_candidates=8, landmarks="kmeans", **SMALL),
        LABELS,
        ("losses_", "weights_", "total_weight_"),
    ),
    "the mean of numbers": (
        dkl.AlignedFeatures(n_candidates=64, n_features=20, **SMALL),
        NUMBERS,
        ("alignment_", "weights_"),
    ),
    "the units of numbers": (
        dkl.TunedRegressor(n_features=24, **SMALL),
        NUMBERS,
        ("coef_", "intercept_", "density_"),
    ),
}


WRITTEN: dict[bool, Path] = {}  # the stores of labels and of numbers, which tests copy


@pytest.fixture(scope="module", autouse=True)
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A store a site, of 8, 3 and 6 blocks; one of the rows of all; one of other rows of the same columns."""
    made_up = np.random.default_rng(9).normal(size=(80, 3)).astype(np.float32)
    for y in (LABELS, NUMBERS):
        folder = WRITTEN[y is LABELS] = tmp_path_factory.mktemp("written")
        for name, rows in SITES.items():
            dkl.create_dataset(folder / f"{name}.zarr", X[rows], y[rows], rows_a_block=20)
        north, south, west = SITES.values()
        whole = dkl.create_dataset(folder / "all.zarr", X[north], y[north], rows_a_block=20)
        whole.append(X[south], y[south]).append(X[west], y[west])
        dkl.create_dataset(folder / "public.zarr", made_up, y[:80], rows_a_block=40)
    yield
    WRITTEN.clear()


def copied(folder: Path, y: np.ndarray, name: str) -> Dataset:
    """A copy of a store with these targets."""
    return dkl.open_dataset(shutil.copytree(WRITTEN[y is LABELS] / name, folder / name))


def stores(folder: Path, y: np.ndarray) -> dict[str, Dataset]:
    """A store a site, of 8, 3 and 6 blocks."""
    return {name: copied(folder, y, f"{name}.zarr") for name in SITES}


def appended(folder: Path, y: np.ndarray) -> Dataset:
    """The rows of all sites in one store, in their order."""
    return copied(folder, y, "all.zarr")


def public_rows(folder: Path, y: np.ndarray) -> Dataset:
    """Other rows than those of the sites, of the same columns and classes."""
    return copied(folder, y, "public.zarr")


def sizes(sites: Mapping[str, Dataset]) -> dict[str, int]:
    return {name: ds.source.n_blocks for name, ds in sites.items()}


def summed(agreement: dkl.Agreement, sites: Mapping[str, Dataset]) -> list[SiteSums]:
    return [dkl.export_sums(agreement, ds, site=name, allow_few_rows=True) for name, ds in sites.items()]


def assert_same(found: Any, expected: Any, names: tuple[str, ...]) -> None:
    for name in names:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    np.testing.assert_array_equal(found.transform(X), expected.transform(X))


@pytest.mark.parametrize("case", SETTLED)
def test_what_was_settled_on_other_rows_is_that_of_an_update(tmp_path: Path, case: str) -> None:
    learner, y, names = SETTLED[case]
    sites, public = stores(tmp_path, y), public_rows(tmp_path, y)
    agreement = dkl.agree(learner, public, sizes(sites))
    found = dkl.fit_from_sums(agreement, summed(agreement, sites))
    reference = type(learner)(**{**learner.get_params(deep=False), "sums": tmp_path / "kept"}).fit(public)
    assert_same(found, reference.update(appended(tmp_path, y)), names)


def test_every_learner_with_an_update_travels() -> None:
    """Those whose `update` is exact are among the cases above; whoever adds one finds it missing here."""
    able = {entry.learner_class for entry in REGISTERED if hasattr(entry.learner_class, "update")}
    tried = {type(learner) for learner, _, _ in (*LEARNERS.values(), *SETTLED.values())}
    assert able | {dkl.TunedClassifier, dkl.TunedRegressor} == tried


@pytest.mark.parametrize("case", LEARNERS)
def test_three_sites_have_the_bits_of_a_fit_to_their_stores_and_what_leaves_is_gone(tmp_path: Path, case: str) -> None:
    learner, y, names = LEARNERS[case]
    # with sums=, the leverage of all rows is taken from their Gram matrix, as sites do
    fresh = {**learner.get_params(deep=False), **({"sums": tmp_path / "kept"} if case == "leverage" else {})}
    sites, whole = stores(tmp_path, y), appended(tmp_path, y)
    agreement = dkl.agree(learner, public_rows(tmp_path, y), sizes(sites))
    sums = summed(agreement, sites)
    assert whole.source.n_blocks == 17
    assert_same(dkl.fit_from_sums(agreement, sums), type(learner)(**fresh).fit(whole), names)
    # rows 30 and 31 of the north, a block of the west (blocks 11 to 16 of all)
    left = {**sites, "north": sites["north"].drop([30, 31]), "west": sites["west"].drop(blocks=[2])}
    again = summed(agreement, left)
    whole = whole.drop([30, 31]).drop(blocks=[13])
    if case == "leverage":
        fresh["sums"] = tmp_path / "kept without a block"
    assert_same(dkl.fit_from_sums(agreement, again), type(learner)(**fresh).fit(whole), names)
    for name, before in sums[1].sums.items():
        assert np.array_equal(again[1].sums[name], before)
    # the south leaves: its blocks are 8 to 10
    without = dkl.fit_from_sums(agreement, [again[0], again[2]], without=["south"])
    if case == "leverage":
        fresh["sums"] = tmp_path / "kept without the south"
    assert_same(without, type(learner)(**fresh).fit(whole.drop(blocks=[8, 9, 10])), names)


def test_files_and_their_order_change_no_bit(tmp_path: Path) -> None:
    learner, y, names = LEARNERS["aligned"]
    sites = stores(tmp_path, y)
    agreement = dkl.agree(learner, public_rows(tmp_path, y), sizes(sites))
    agreement.save(tmp_path / "agreement.zarr")
    assert dkl.Agreement.load(tmp_path / "agreement.zarr").digest == agreement.digest
    for name, ds in sites.items():
        made = dkl.export_sums(
            tmp_path / "agreement.zarr", ds, tmp_path / f"{name}.sums", site=name, allow_few_rows=True
        )
        assert repr(made).startswith(f"SiteSums(site '{name}'")
    paths = [tmp_path / f"{name}.sums" for name in ("west", "north", "south")]
    found = dkl.fit_from_sums(tmp_path / "agreement.zarr", paths)
    assert_same(found, dkl.fit_from_sums(agreement, summed(agreement, sites)), names)
    agreement.save(tmp_path / "agreement.json")
    found = dkl.fit_from_sums(tmp_path / "agreement.json", paths)
    assert_same(found, dkl.fit_from_sums(agreement, summed(agreement, sites)), names)
    with pytest.raises(FileExistsError):
        dkl.export_sums(agreement, sites["west"], tmp_path / "west.sums", site="west", allow_few_rows=True)
    with pytest.raises(ValueError, match=r"holds a SiteSums, not what dkl.agree"):
        dkl.Agreement.load(tmp_path / "west.sums")


def test_weights_that_are_whole_numbers_keep_the_bits(tmp_path: Path) -> None:
    learner, y, names = LEARNERS["tuned"]
    weights = np.random.default_rng(1).integers(1, 4, 330)
    sites = {
        name: dkl.create_dataset(
            tmp_path / f"{name}.zarr", X[rows], y[rows], sample_weight=weights[rows], rows_a_block=20
        )
        for name, rows in SITES.items()
    }
    agreement = dkl.agree(learner, public_rows(tmp_path, y), sizes(sites))
    north, south, west = SITES.values()
    whole = dkl.create_dataset(tmp_path / "all.zarr", X[north], y[north], sample_weight=weights[north], rows_a_block=20)
    for rows in (south, west):
        whole = whole.append(X[rows], y[rows], sample_weight=weights[rows])
    assert_same(dkl.fit_from_sums(agreement, summed(agreement, sites)), learner.fit(whole), names)


def test_a_site_without_rows_of_a_class_takes_part(tmp_path: Path) -> None:
    learner, _, names = LEARNERS["aligned"]
    north, south = np.arange(0, 150), 150 + np.flatnonzero(LABELS[150:] == "up")
    labels = ["down", "up"]
    sites = {
        "north": dkl.create_dataset(tmp_path / "north", X[north], LABELS[north], rows_a_block=20),
        "south": dkl.create_dataset(tmp_path / "south", X[south], LABELS[south], classes=labels, rows_a_block=20),
    }
    agreement = dkl.agree(learner, sites["north"], sizes(sites))
    whole = dkl.create_dataset(tmp_path / "all", X[north], LABELS[north], rows_a_block=20)
    found = dkl.fit_from_sums(agreement, summed(agreement, sites))
    assert_same(found, learner.fit(whole.append(X[south], LABELS[south])), names)


@pytest.mark.parametrize("counts", [(8, 3, 6), (1, 1, 1), (5, 11, 1), (2, 2, 4), (7, 1, 9)])
def test_the_nodes_of_sites_are_the_largest_that_cover_their_blocks(counts: tuple[int, ...]) -> None:
    sites, total = dict(zip("abc", counts, strict=True)), sum(counts)
    agreement = dkl.Agreement(None, Schema(3, np.dtype(np.float32)), sites, "")
    for site in "abc":
        nodes, numbers = agreement.nodes(site), agreement.numbers(site)
        covered = [node.blocks(total) for node in nodes]
        assert [block for blocks in covered for block in blocks] == list(numbers)
        for node, blocks in zip(nodes, covered, strict=True):
            # a node above that has more blocks has some of another site
            above = node.parent.blocks(total)
            assert above == blocks or above.start < numbers.start or above.stop > numbers.stop


@pytest.mark.parametrize("counts", [(3, 1, 7), (5, 5, 5), (1, 2, 30), (16, 1, 16)])
def test_sums_of_nodes_make_the_total_of_all_blocks(counts: tuple[int, ...]) -> None:
    sites, total = dict(zip("abc", counts, strict=True)), sum(counts)
    values = np.random.default_rng(total).normal(size=total) * 10.0 ** np.random.default_rng(1).integers(-8, 8, total)
    agreement = dkl.Agreement(None, Schema(3, np.dtype(np.float32)), sites, "")

    def tree(top: Node, nodes: Mapping[Node, float]) -> float:
        adding = TreeSum[float](lambda left, right: left + right, total, top)
        for node, value in nodes.items():
            adding.add(node, value)
        assert adding.total is not None
        return adding.total

    parts = {}
    for site in sites:
        for node in agreement.nodes(site):
            parts[node] = tree(node, {Node(0, block): values[block] for block in node.blocks(total)})
    whole = tree(root(total), {Node(0, block): values[block] for block in range(total)})
    assert tree(root(total), parts) == whole
    # a plain sum has other bits, or the test would say nothing
    assert whole != reduce(add, values.tolist()) or total < 4


def test_an_agreement_holds_nothing_that_was_learned_from_its_rows(tmp_path: Path) -> None:
    y = LABELS
    agreement = dkl.agree(LEARNERS["aligned"][0], public_rows(tmp_path, y), {"a": 1})
    held = {name for name in vars(agreement.learner) if name.endswith("_")}
    assert held == {"pool_", "family_", "classes_", "seed_", "n_features_in_", "encoding_", "target_pivot_"}
    assert repr(agreement) == "Agreement(AlignedFeatures, 3 columns, blocks of {a: 1})"
    other = agreement.with_sites({"a": 2, "b": 1})
    assert other.numbers("b") == range(2, 3)
    assert other.nodes("a") == [Node(1, 0)]
    assert other.digest != agreement.digest


def test_sums_of_few_rows_are_refused_unless_asked(tmp_path: Path) -> None:
    learner = LEARNERS["aligned"][0]
    wide, labels = RNG.normal(size=(90, 12)), np.arange(90) % 2
    # the last block has ten rows, fewer than the twelve columns
    rows = dkl.create_dataset(tmp_path / "rows.zarr", wide, labels, rows_a_block=80)
    agreement = dkl.agree(learner, rows, {"a": 2, "b": 5})
    assert len(summed(agreement, {"a": rows})[0].nodes) == 1
    dkl.export_sums(agreement, rows, site="a")
    apart = agreement.with_sites({"b": 1, "a": 2})
    with pytest.raises(ValueError, match=r"block 1 of .* would be of 5 rows of class 0, fewer than their 12 columns"):
        dkl.export_sums(apart, rows, site="a")
    assert dkl.export_sums(apart, rows, site="a", allow_few_rows=True).rows.tolist() == [80, 10]
    # a weight does not make several rows of one
    heavy = dkl.create_dataset(tmp_path / "heavy", wide, labels, sample_weight=np.full(90, 50.0), rows_a_block=80)
    with pytest.raises(ValueError, match="would be of 5 rows of class 0"):
        dkl.export_sums(apart, heavy, site="a")
    # leverage scores know no classes, so that rows are counted whatever their class
    unsupervised = dkl.agree(LEARNERS["leverage"][0], rows, {"b": 1, "a": 2})
    with pytest.raises(ValueError, match="would be of 10 rows, fewer than their 12 columns"):
        dkl.export_sums(unsupervised, rows, site="a")


@pytest.fixture(scope="module")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> tuple[dkl.Agreement, list[SiteSums]]:
    """An agreement, and the sums of the three sites."""
    folder = tmp_path_factory.mktemp("agreed")
    sites = stores(folder, LABELS)
    agreement = dkl.agree(LEARNERS["aligned"][0], public_rows(folder, LABELS), sizes(sites))
    return agreement, summed(agreement, sites)


def broken(part: SiteSums, **changes: Any) -> SiteSums:
    return replace(part, **changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: parts[:2], r"of \['west'\] are missing; give them, or leave the sites out"),
        (lambda parts: [*parts, parts[0]], "north.* were given more than once"),
        (lambda parts: [broken(parts[0], agreement="0"), *parts[1:]], "'north' were made under another agreement"),
        (lambda parts: [broken(parts[0], version="0.0.1"), *parts[1:]], "computed by dkl 0.0.1"),
        (lambda parts: [*parts[:2], broken(parts[2], device="gpu")], "device='cpu'"),
        (lambda parts: [broken(parts[0], nodes=np.array([[0, 9]])), *parts[1:]], "of other blocks than its own"),
        (lambda parts: [broken(parts[0], sums={}), *parts[1:]], "'north' need the arrays"),
        (
            lambda parts: [broken(parts[0], sums={**parts[0].sums, "targets": np.full((1, 2), np.nan)}), *parts[1:]],
            "'targets' in the sums of site 'north' holds NaN",
        ),
        (lambda parts: [broken(parts[0], site="east"), *parts[1:]], "site is 'east'; the agreement is between"),
        (lambda parts: ["nowhere.zarr"], "there is no model"),
    ],
)
def test_sums_that_do_not_belong_together_are_refused(agreed: Any, change: Any, message: str) -> None:
    agreement, parts = agreed
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        dkl.fit_from_sums(agreement, change(parts))


def test_lists_of_sites_that_are_none_are_refused_by_name(agreed: Any) -> None:
    agreement, parts = agreed
    for without in ("west", None, {"west": 1}, 3):
        with pytest.raises(TypeError, match=r"without is of type .*; expected a list with names of sites"):
            dkl.fit_from_sums(agreement, parts[:2], without=without)  # type: ignore[arg-type]
    for sums in (None, dict(zip("abc", parts, strict=True)), 3):
        with pytest.raises(TypeError, match=r"sums is of type .*; expected a list with those of each site"):
            dkl.fit_from_sums(agreement, sums)  # type: ignore[arg-type]


def changed(field: str, place: Any = 0, value: Any = None, name: str = "") -> Any:
    """The first site's sums with another number at a place of one array, or with another array."""

    def change(part: SiteSums) -> SiteSums:
        held = part.sums[name] if name else getattr(part, field)
        if place is None:
            other = value(held) if callable(value) else value
        else:
            other = np.array(held, dtype=held.dtype if np.asarray(value).dtype.kind in "biu" else np.float64)
            other[place] = value
        return replace(part, sums={**part.sums, name: other}) if name else replace(part, **{field: other})

    return change


CRAFTED: list[tuple[str, Any]] = [
    ("no rows", changed("rows", 0, 0)),
    ("a negative number of rows", changed("rows", 0, -5)),
    ("half a row", changed("rows", None, np.array([149.5]))),
    ("rows of another shape", changed("rows", None, np.array([[150]]))),
    ("rows that are texts", changed("rows", None, np.array(["150"]))),
    ("rows that are none", changed("rows", None, None)),
    ("a weight of NaN", changed("weights", 0, np.nan)),
    ("an infinite weight", changed("weights", 0, np.inf)),
    ("a negative weight", changed("weights", 0, -150.0)),
    ("a weight of 0", changed("weights", 0, 0.0)),
    ("weights of another shape", changed("weights", None, np.array([75.0, 75.0]))),
    ("one weight without an axis", changed("weights", None, np.array(150.0))),
    ("a class weight of NaN", changed("class_weights", (0, 0), np.nan)),
    ("a negative class weight", changed("class_weights", (0, 0), -1.0)),
    ("class weights that do not add up", changed("class_weights", (0, 0), 82.0)),
    ("class weights of another number of classes", changed("class_weights", None, np.full((1, 3), 50.0))),
    ("no class weights", changed("class_weights", None, None)),
    (
        "the same node twice",
        lambda part: replace(
            part,
            nodes=np.repeat(part.nodes, 2, axis=0),
            rows=np.repeat(part.rows, 2),
            weights=np.repeat(part.weights, 2),
            class_weights=np.repeat(part.class_weights, 2, axis=0),
            sums={name: np.repeat(array, 2, axis=0) for name, array in part.sums.items()},
        ),
    ),
    ("a node with three numbers", changed("nodes", None, np.zeros((1, 3), np.int64))),
    ("nodes that are no whole numbers", changed("nodes", None, lambda nodes: nodes.astype(float))),
    ("sums of targets that are not the weights", changed("sums", (0, 0), 80.0, "targets")),
    ("a negative sum of targets", changed("sums", (0, 0), -81.0, "targets")),
    ("a wave above the weights", changed("sums", (0, 0, 3, 0), 100.0, "features0")),
    ("a wave far below the weights", changed("sums", (0, 1, 3, 1), -1e300, "features0")),
    ("an infinite wave", changed("sums", (0, 0, 3, 0), np.inf, "features0")),
    ("waves in single precision", changed("sums", None, lambda sums: sums.astype(np.float32), "features0")),
    ("waves of another shape", changed("sums", None, lambda sums: sums[:, :, :-1], "features0")),
    ("waves that are a list", changed("sums", None, lambda sums: sums.tolist(), "features0")),
    ("waves that are none", changed("sums", None, None, "features0")),
    ("waves of fewer sums", changed("sums", None, lambda sums: sums[:-1], "features0")),
    ("waves that are masked", changed("sums", None, lambda sums: np.ma.masked_array(sums, True), "features0")),
    ("no sums", changed("sums", None, None)),
    ("sums in a list", changed("sums", None, lambda sums: list(sums.items()))),
    ("sums under numbers", changed("sums", None, {1: np.zeros(1)})),
    ("further sums", changed("sums", None, lambda sums: {**sums, "more": np.zeros(1)})),
    ("more rows than there can be", changed("rows", None, np.array([2**62]))),
    ("rows that are no int64", changed("rows", None, np.array([2**64 - 1], np.uint64))),
    ("weights in half precision", changed("weights", None, lambda weights: weights.astype(np.float16))),
    ("class weights in half precision", changed("class_weights", None, lambda weights: weights.astype(np.float16))),
]


@pytest.mark.parametrize(("what", "change"), CRAFTED, ids=[what for what, _ in CRAFTED])
def test_sums_that_no_rows_have_are_refused(agreed: Any, what: str, change: Any) -> None:
    agreement, parts = agreed
    with pytest.raises(ValueError, match=r"(the|in the) sums of site 'north'"):
        dkl.fit_from_sums(agreement, [change(parts[0]), *parts[1:]])


GRAMS: list[tuple[str, str, Any, float]] = [
    ("leverage", "gram", (0, -1), 151.0),  # the weight of all rows
    ("leverage", "gram", (0, 0), -1.0),
    ("leverage", "gram", (0, 0), 1e9),
    ("leverage", "gram", (0, 1), 1e9),
    ("tuned", "gram", (0, 0, -2), -149.0),
    ("tuned", "cross", (0, 0, 0, 2), 1e4),
    ("tuned", "squares", (0, 0, 0), -1.0),
    ("tuned", "squares", (0, 0, 0), 1e300),
    ("the units of numbers", "squares", (0, 0, 0), 1e308),  # of the largest targets that a fit takes
    ("tuned", "cross", (0, 0, 0, -1), 149.0),  # rows of one class less those of the other
]


@pytest.fixture(scope="module")
def agreed_grams(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dkl.Agreement, list[SiteSums]]]:
    """An agreement on each learner of `GRAMS`, and the sums of the three sites."""
    found = {}
    for case in {case for case, *_ in GRAMS}:
        learner, y, _ = {**LEARNERS, **SETTLED}[case]
        folder = tmp_path_factory.mktemp("grams")
        sites = stores(folder, y)
        agreement = dkl.agree(learner, public_rows(folder, y), sizes(sites))
        found[case] = (agreement, summed(agreement, sites))
    return found


@pytest.mark.parametrize(("case", "name", "place", "value"), GRAMS)
def test_products_that_no_rows_have_are_refused(
    agreed_grams: Any, case: str, name: str, place: Any, value: float
) -> None:
    agreement, parts = agreed_grams[case]
    with pytest.raises(ValueError, match=f"'{name}' in the sums of site 'north' cannot be sums of rows"):
        dkl.fit_from_sums(agreement, [changed("sums", place, value, name)(parts[0]), *parts[1:]])


def test_sums_out_of_their_order_and_of_a_site_that_is_none_are_refused(tmp_path: Path) -> None:
    settled = dkl.agree(LEARNERS["aligned"][0], public_rows(tmp_path, LABELS), {"north": 3, "south": 2})
    rows = dkl.create_dataset(str(tmp_path / "north.zarr"), X[:150], LABELS[:150], rows_a_block=50)
    part = dkl.export_sums(settled, rows, site="north")
    assert len(part.nodes) == 2
    with pytest.raises(ValueError, match="not in their order"):
        dkl.fit_from_sums(settled, [replace(part, nodes=part.nodes[::-1].copy())], without=["south"])
    for site in (3, ["north"], None):
        with pytest.raises(ValueError, match="the agreement is between"):
            dkl.fit_from_sums(settled, [replace(part, site=site)], without=["south"])  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [1e-200, 1e100])
def test_sums_whose_weights_are_lost_in_products_are_refused(agreed: Any, factor: float) -> None:
    agreement, parts = agreed
    scaled = [
        replace(
            part,
            weights=factor * part.weights,
            class_weights=factor * part.class_weights,
            sums={name: factor * array for name, array in part.sums.items()},
        )
        for part in parts
    ]
    with pytest.raises(ValueError, match="sample_weight sums to"):
        dkl.fit_from_sums(agreement, scaled)


def test_sums_of_a_trillion_rows_take_the_memory_of_the_sums(agreed: Any) -> None:
    agreement, parts = agreed
    many = [replace(part, rows=np.full(len(part.rows), 10**12)) for part in parts]
    few, learner = (dkl.fit_from_sums(agreement, sums) for sums in (parts, many))
    np.testing.assert_array_equal(learner.weights_, few.weights_)


def test_an_agreement_of_more_blocks_than_rows_is_refused_at_once(tmp_path: Path) -> None:
    public = public_rows(tmp_path, LABELS)
    learner = LEARNERS["aligned"][0]
    for sites in ({"north": 10**11}, {"north": 10**7, "south": 10**7}):
        with pytest.raises(ValueError, match=r"blocks together; sums of at most 16,777,216 add up"):
            dkl.agree(learner, public, sites)
    with pytest.raises(ValueError, match="sums of at most"):
        dkl.agree(learner, public, {"north": 8}).with_sites({"north": 10**11})


def test_agreements_that_somebody_has_edited_end_in_one_error(tmp_path: Path) -> None:
    agreement, path = dkl.agree(LEARNERS["aligned"][0], public_rows(tmp_path, LABELS), {"a": 8}), tmp_path / "a.json"
    agreement.save(path)
    text = path.read_text()
    generator, places = np.random.default_rng(0), [*_places(json.loads(text))]
    spoilt: list[Any] = [None, [], "x", 10**11, -1, 1.5, {}, {"a": 10**11}, {"object": "Agreement", "fields": {}}]
    for number in range(150):
        copy = json.loads(text)
        *way, last = places[generator.integers(len(places))]
        if way[:1] in (["kind"], ["format"]) or last in ("kind", "format"):
            continue
        inner = copy
        for step in way:
            inner = inner[step]
        if number % 3:
            if inner[last] == spoilt[number % len(spoilt)]:
                continue
            inner[last] = spoilt[number % len(spoilt)]
        else:
            del inner[last]
        path.write_text(json.dumps(copy))
        # a parameter that is left out has its default, and so may be what was agreed
        with suppress(StoreError):
            assert dkl.Agreement.load(path).digest == agreement.digest


def _places(tree: Any, way: tuple[Any, ...] = ()) -> Any:
    """The ways to all parts of a JSON value."""
    for step, part in tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ():
        yield (*way, step)
        yield from _places(part, (*way, step))


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (dkl.MarginFeatures(n_features=4), "MarginFeatures learns from more than one pass of sums"),
        (dkl.AlignedFeatures(class_weight="balanced"), "class_weight='balanced', which depends on how many rows"),
        (dkl.AlignedFeatures(max_rows=10), "leave max_rows=None"),
        (dkl.LeverageFeatures(n_rows=10), "leave n_rows=None"),
        (dkl.LandmarkFeatures(landmarks="random"), "landmarks='random', which are rows"),
        (dkl.TunedClassifier(9), "it needs loss='squared_error'"),
    ],
)
def test_learners_that_need_more_than_sums_are_refused(tmp_path: Path, learner: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        dkl.agree(learner, public_rows(tmp_path, LABELS), {"a": 1})


def test_rows_that_were_not_agreed_on_are_refused(tmp_path: Path) -> None:
    learner, public = LEARNERS["aligned"][0], public_rows(tmp_path, LABELS)
    agreement = dkl.agree(learner, public, {"a": 2})

    def export(name: str, rows: np.ndarray, y: np.ndarray, **options: Any) -> SiteSums:
        return dkl.export_sums(agreement, dkl.create_dataset(tmp_path / name, rows, y, **options), site="a")

    with pytest.raises(ValueError, match="has 8 blocks, and 2 were agreed on"):
        export("blocks", X[:160], LABELS[:160], rows_a_block=20)
    with pytest.raises(ValueError, match="dense of float64, and dense of float32 were agreed on"):
        export("dtype", X[:40].astype(np.float64), LABELS[:40], rows_a_block=20)
    with pytest.raises(ValueError, match="classes"):
        export("classes", X[:40], np.arange(40) % 3, rows_a_block=20)
    with pytest.raises(ValueError, match="2 features"):
        export("columns", X[:40, :2], LABELS[:40], rows_a_block=20)
    with pytest.raises(ValueError, match="Dataset in a store of dkl"):
        dkl.export_sums(agreement, X, site="a")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the agreement was made with dkl 0\.0\.1"):
        dkl.export_sums(replace(agreement, version="0.0.1"), public, site="a")
    with pytest.raises(ValueError, match="expected how many blocks each site has"):
        dkl.agree(learner, public, {})
    with pytest.raises(ValueError, match="expected a Dataset like those of the sites"):
        dkl.agree(learner, X, {"a": 1})  # type: ignore[arg-type]


def test_the_shell_agrees_sums_and_fits(tmp_path: Path) -> None:
    sites, public = stores(tmp_path, LABELS), public_rows(tmp_path, LABELS)
    options = ["--learner", "aligned", "--features", "20", "--candidates", "64", "--sigma", "1.0", "--scaling", "none"]
    blocks = [text for name, count in sizes(sites).items() for text in ("--site", f"{name}={count}")]

    def run(*arguments: object) -> dict[str, Any]:
        done = CliRunner().invoke(app, ["sums", *map(str, arguments), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    agreement, paths = tmp_path / "agreement.json", {name: tmp_path / f"{name}.sums" for name in sites}
    assert run("agree", public.store, agreement, *options, *blocks)["blocks"] == 17
    for name, ds in sites.items():
        whose = ("--agreement", agreement, "--site", name, "--allow-few-rows")
        assert run("export", ds.store, paths[name], *whose)["rows"] == ds.n_rows
    assert run("fit", agreement, tmp_path / "model.zarr", *paths.values())["rows"] == 330
    found = dkl.load_model(tmp_path / "model.zarr")
    assert_same(found, LEARNERS["aligned"][0].fit(appended(tmp_path, LABELS)), ("alignment_", "weights_"))
    wrong = ["sums", "export", sites["south"].store, tmp_path / "x", "--agreement", agreement, "--site", "east"]
    refused = CliRunner().invoke(app, list(map(str, wrong)))
    assert refused.exit_code == 1
    assert "site is 'east'" in " ".join(refused.stderr.split())


def test_the_page_on_sums_runs_and_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "examples" / "reference" / "sums.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", text, re.S)), "sums.md", "exec"), names)
    np.testing.assert_array_equal(names["together"].coef_, names["whole"].coef_)
    np.testing.assert_array_equal(names["left"].coef_, names["fresh"].coef_)


@pytest.mark.parametrize("kind", ["aligned", "tuned"])
def test_an_agreement_is_a_file_that_says_what_is_agreed_and_nothing_else(tmp_path: Path, kind: str) -> None:
    learner, y, _ = LEARNERS[kind]
    sites = stores(tmp_path, y)
    agreement, path = dkl.agree(learner, public_rows(tmp_path, y), sizes(sites)), tmp_path / "agreement.json"
    agreement.save(path)
    assert dkl.Agreement.load(path).digest == agreement.digest
    facts = json.loads(path.read_text())
    assert facts["digest"] == agreement.digest
    assert facts["agreed"]["sites"] == {
        name: f"blocks {numbers[0]} to {numbers[-1]}" for name in sites if (numbers := agreement.numbers(name))
    }
    assert facts["agreed"]["learner"] == type(learner).__name__
    with pytest.raises(FileExistsError, match="exists; choose another path"):
        agreement.save(path)
    agreement.save(path, overwrite=True)
    # words that say something else, another number, a cut array: none of them is taken for what was agreed
    place = next(number for number, entry in enumerate(facts["arrays"]) if len(entry["base64"]) > 8)
    content, spoilt = facts["arrays"][place]["base64"], []
    other, cut = (
        [{**entry, "base64": text} if number == place else entry for number, entry in enumerate(facts["arrays"])]
        for text in ("B" * 4 + content[4:], content[:-4])
    )
    elsewhere = {**facts["agreed"], "sites": {"north": "blocks 0 to 9"}}
    for change in ({"agreed": elsewhere}, {"arrays": other}, {"arrays": cut}):
        spoilt.append(json.dumps({**facts, **change}))
    for text in spoilt:
        path.write_text(text)
        with pytest.raises(StoreError):
            dkl.Agreement.load(path)
    path.write_text("{}")
    with pytest.raises(ValueError, match="is not what dkl"):
        dkl.Agreement.load(path)
    with pytest.raises(FileExistsError, match="it is a file, not an agreement"):
        agreement.save(path, overwrite=True)
    with pytest.raises(FileNotFoundError):
        dkl.Agreement.load(tmp_path / "none.json")

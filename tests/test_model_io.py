"""Saved models predict the same bits, and a file is never trusted: no pickle, no strange class, nothing half-done."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

import dkl
from dkl.blocks.maps import map_rows
from dkl.data.coerce import as_dataset
from dkl.errors import CorruptChunkError, StoreError
from dkl.features.families import ArcCosine, Cauchy, Coordinates, Gaussian, Laplacian, Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import SparseProjection
from dkl.features.sparse_frequencies import SparseFrequencies
from dkl.learners.aligned import AlignedFeatures
from dkl.learners.kernel_machines import KernelClassifier, KernelRegressor
from dkl.learners.margin import MarginFeatures
from dkl.learners.peaks import PeakFeatures
from dkl.learners.posterior import PosteriorFeatures
from dkl.learners.random_features import RandomFeatures
from dkl.model_io import FORMAT, load_model, save
from tests.linear.problems import rows

X, CODES = rows(300, 3, 6)
LABELS = np.array(["ape", "bee", "cat"])[CODES]


def classifier(**parameters: Any) -> KernelClassifier:
    given: dict[str, Any] = {"features": RandomFeatures(n_features=20), "epochs": 2, "random_state": 0}
    return KernelClassifier(**{**given, **parameters})


@pytest.fixture(scope="module")
def fitted() -> KernelClassifier:
    return classifier(calibrate=True).fit(X, LABELS)


@pytest.fixture
def saved(fitted: KernelClassifier, tmp_path: Path) -> Path:
    fitted.save(tmp_path / "model.zarr")
    return tmp_path / "model.zarr"


MODELS: dict[str, Callable[[], Any]] = {
    "hinge, aligned": lambda: classifier(features=AlignedFeatures(n_candidates=50, n_features=20)),
    "log loss, posterior": lambda: classifier(
        features=PosteriorFeatures(n_candidates=50, n_features=20), loss="log_loss"
    ),
    "peaks": lambda: classifier(features=PeakFeatures(n_features=20, chains=20, steps=5)),
    "margin": lambda: classifier(features=MarginFeatures(n_features=20, chains=20)),
    "regressor, margin": lambda: KernelRegressor(
        MarginFeatures(n_features=20, sparse_share=1.0, plain_share=0.0), solver="newton", random_state=0
    ),
    "game": lambda: classifier(features=MarginFeatures(n_features=8, solver="game", chains=20, steps=5)),
    "newton": lambda: classifier(solver="newton", loss="squared_hinge", alpha=1e-2),
    "regressor": lambda: KernelRegressor(RandomFeatures(n_features=20), epochs=2, random_state=0),
    "ridge": lambda: KernelRegressor(RandomFeatures(n_features=20), solver="newton", random_state=0),
    **{
        f"{type(family).__name__}, {scaling}": lambda family=family, scaling=scaling: classifier(
            features=RandomFeatures(family, n_features=20, scaling=scaling)
        )
        for family, scaling in (
            (Gaussian(sampling="structured"), "standard"),
            (Gaussian(2.0, pairing="phase"), "quantile"),
            (Laplacian(), "minmax"),
            (Cauchy(), "unit"),
            (Matern(1.5, sampling="orthogonal"), None),
            (ArcCosine(1), "standard"),
            (Coordinates(), None),
            (SparseFrequencies(Gaussian(2.0), share=0.5), "standard"),
        )
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_model_predicts_the_same_bits(name: str, tmp_path: Path) -> None:
    y = X[:, 0] if "regressor" in name or "ridge" in name else LABELS
    features = RandomFeatures(n_features=6) if name.startswith("Coordinates") else None
    model = MODELS[name]()
    if features is not None:
        model.set_params(features__n_features=6)
    model.fit(X, y)
    model.save(tmp_path / "model.zarr")
    loaded = load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    for method in ("decision_function", "predict_proba"):
        if hasattr(model, method):
            np.testing.assert_array_equal(getattr(loaded, method)(X), getattr(model, method)(X))
    assert repr(loaded) == repr(model)


def test_it_predicts_the_same_bits_from_dask_and_datasets_and_goes_on_fitting(fitted: Any, saved: Path) -> None:
    import dask.array as da

    loaded = load_model(saved)
    lazy = da.from_array(X, chunks=(70, 6))
    np.testing.assert_array_equal(loaded.predict_proba(lazy).compute(), fitted.predict_proba(lazy).compute())
    data = as_dataset(X, LABELS)
    pd.testing.assert_frame_equal(loaded.predict_proba(data).compute(), fitted.predict_proba(data).compute())
    again = load_model(saved).partial_fit(X, LABELS)
    assert not np.array_equal(again.linear_.coef_, loaded.linear_.coef_)


def test_another_process_without_a_scheduler_predicts_the_same_bits(fitted: Any, saved: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X)
    program = (
        "import sys, numpy as np; sys.modules['distributed'] = None; from dkl.model_io import load_model; "
        f"X = np.load({str(tmp_path / 'X.npy')!r}); m = load_model({str(saved)!r}); "
        f"np.save({str(tmp_path / 'p.npy')!r}, m.predict_proba(X)); assert 'dask_ml' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=Path(dkl.__file__).parents[1])
    np.testing.assert_array_equal(np.load(tmp_path / "p.npy"), fitted.predict_proba(X))


def test_feature_learners_are_models_too_and_choose_again_without_rows(tmp_path: Path) -> None:
    learner = AlignedFeatures(n_candidates=60, n_features=20, random_state=0).fit(X, LABELS)
    save(learner, tmp_path / "features.zarr")
    loaded = load_model(tmp_path / "features.zarr")
    np.testing.assert_array_equal(loaded.transform(X), learner.transform(X))
    np.testing.assert_array_equal(loaded.candidates_, learner.candidates_)
    np.testing.assert_array_equal(loaded.with_rho(1.0).transform(X), learner.with_rho(1.0).transform(X))


def test_raw_frames_go_through_the_saved_encoding(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "place": np.where(X[:, 2] > 0, "north", "south")})
    model = classifier().fit(frame, LABELS)
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(load_model(tmp_path / "model.zarr").predict(frame), model.predict(frame))


@pytest.mark.parametrize("store", ["memory://models/one.zarr", "{tmp}/with space/größe.zarr"])
def test_stores(store: str, fitted: Any, tmp_path: Path) -> None:
    store = store.format(tmp=tmp_path)
    fitted.save(store)
    np.testing.assert_array_equal(dkl.load_model(store).predict(X), fitted.predict(X))
    with pytest.raises(FileExistsError, match="overwrite=True"):
        fitted.save(store)
    fitted.save(store, overwrite=True)
    np.testing.assert_array_equal(load_model(store).predict(X), fitted.predict(X))


@dataclasses.dataclass(frozen=True)
class Halved:
    """A family of an extension."""

    sigma: float = 1.0

    needs_bandwidth = False

    def with_bandwidth(self, sigma: float) -> Halved:
        return Halved(sigma)

    def draw(self, *arguments: Any, **named: Any) -> Any:
        return Gaussian(self.sigma / 2).draw(*arguments, **named)

    def feature_scale(self, n_columns: int) -> float:
        return 1.0

    def validate(self) -> None:
        pass


def test_classes_of_extensions_are_handed_over_and_never_imported(tmp_path: Path) -> None:
    model = RandomFeatures(Halved(3.0), n_features=10, random_state=0).fit(X)
    save(model, tmp_path / "model.zarr")
    with pytest.raises(StoreError, match=r"'Halved'.*classes=\[Halved\]"):
        load_model(tmp_path / "model.zarr")
    loaded = load_model(tmp_path / "model.zarr", classes=[Halved])
    np.testing.assert_array_equal(loaded.transform(X), model.transform(X))


def test_how_a_fit_was_run_is_not_part_of_the_model(tmp_path: Path) -> None:
    events: list[Any] = []
    model = classifier(progress=events.append, random_state=np.random.RandomState(0)).fit(X, LABELS)
    model.save(tmp_path / "model.zarr")
    loaded = load_model(tmp_path / "model.zarr")
    assert loaded.progress is None
    assert loaded.random_state is None
    assert loaded.seed_ == model.seed_


class Evil:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("/tmp/dkl-was-fooled",)


def edit(store: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the metadata of a model in place."""
    path = store / "zarr.json"
    node = json.loads(path.read_text())
    change(node["attributes"]["dkl"])
    path.write_text(json.dumps(node))


def first_array(tree: Any) -> dict[str, Any]:
    """The first entry for an array in a JSON tree."""
    for one in _trees(tree):
        if isinstance(one, dict) and "array" in one:
            return one
    raise LookupError


def _trees(tree: Any) -> Iterator[Any]:
    yield tree
    for one in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _trees(one)


TAMPERED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a newer format": (lambda m: m.update(format=FORMAT + 1), f"format {FORMAT + 1}.*install a newer"),
    "an unknown class": (lambda m: m["model"].update(object="os.system"), "'os.system'.*classes="),
    "a module path": (lambda m: m["model"].update(object="subprocess.Popen"), "does not know"),
    "a path upwards": (lambda m: first_array(m["model"]).update(array="../../secret"), "names an array"),
    "an absolute path": (lambda m: first_array(m["model"]).update(array="/etc/passwd"), "names an array"),
    "a number too large": (lambda m: first_array(m["model"]).update(array="999"), "names an array"),
    "an unknown tag": (lambda m: m["model"]["fields"].update(loss={"pickle": "gASV"}), "'pickle'"),
    "two tags": (lambda m: m["model"]["fields"].update(loss={"tuple": [], "dict": []}), "damaged"),
    "a strange field": (lambda m: m["model"]["fields"].update(predict="x"), r"fields \['predict'\]"),
    "a dunder field": (lambda m: m["model"]["fields"].update(__class__="x"), "__class__"),
    "no fields": (lambda m: m["model"].pop("fields"), "no fields"),
    "no digests": (lambda m: m.pop("digests"), "no digests"),
    "an object dtype": (
        lambda m: m["model"]["fields"].update(loss={"texts": [["x"]], "dtype": "|O", "shape": [1]}),
        "texts",
    ),
    "a structured dtype": (
        lambda m: m["model"]["fields"].update(loss={"texts": ["x"], "dtype": "i4,O", "shape": [1]}),
        "dtype",
    ),
    "not complete": (lambda m: m.update(state="writing"), "not written to its end"),
    "a dataset": (lambda m: m.pop("kind"), "open_dataset"),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_file_that_was_tampered_with_is_refused(name: str, saved: Path) -> None:
    change, message = TAMPERED[name]
    edit(saved, change)
    with pytest.raises(StoreError, match=message):
        load_model(saved)


def test_an_array_of_pickles_is_refused_and_never_run(saved: Path) -> None:
    shutil.rmtree(saved / "0")
    group = zarr.open_group(str(saved), mode="r+")
    with pytest.warns(Warning):  # noqa: PT030 - zarr warns of every dtype without a specification
        group.create_array("0", shape=(1,), dtype="variable_length_bytes")[:] = np.array(
            [pickle.dumps(Evil())], dtype=object
        )
    with pytest.raises(StoreError, match="arrays of numbers only"):
        load_model(saved)
    assert not Path("/tmp/dkl-was-fooled").exists()


@pytest.mark.parametrize("damage", ["flip", "missing", "truncated", "swapped"])
def test_damaged_arrays_are_named(damage: str, saved: Path) -> None:
    chunks = sorted((path for path in saved.rglob("*") if path.is_file() and "c" in path.parts[-3:-1]), key=str)
    chunk = max(chunks, key=lambda path: path.stat().st_size)
    content = bytearray(chunk.read_bytes())
    if damage == "flip":
        content[len(content) // 2] ^= 4
        chunk.write_bytes(content)
    elif damage == "missing":
        chunk.unlink()
    elif damage == "truncated":
        chunk.write_bytes(content[:-7])
    else:
        edit(saved, lambda marker: marker["digests"].reverse())
    with pytest.raises(StoreError, match=r"array \d+") as caught:
        load_model(saved)
    assert isinstance(caught.value, CorruptChunkError)
    assert "at the model" in caught.value.__notes__[0]


def test_nothing_is_visible_when_writing_is_broken_off(fitted: Any, tmp_path: Path, monkeypatch: Any) -> None:
    def disk_full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    fitted.save(tmp_path / "old.zarr")
    monkeypatch.setattr("dkl.model_io._write_array", disk_full)
    for store in (tmp_path / "new.zarr", "memory://half.zarr"):
        with pytest.raises(OSError, match="disk is full"):
            fitted.save(store)
        with pytest.raises(FileNotFoundError, match="no model"):
            load_model(store)
    with pytest.raises(OSError, match="disk is full"):
        fitted.save(tmp_path / "old.zarr", overwrite=True)
    np.testing.assert_array_equal(load_model(tmp_path / "old.zarr").predict(X), fitted.predict(X))


def test_a_killed_writer_leaves_nothing_that_opens(fitted: Any, tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    fitted.save("memory://killed.zarr")
    node = json.loads(files.cat_file("/killed.zarr/zarr.json"))
    node["attributes"]["dkl"] = {"state": "writing", "token": "x"}
    files.pipe_file("/killed.zarr/zarr.json", json.dumps(node).encode())
    with pytest.raises(StoreError, match="not written to its end"):
        load_model("memory://killed.zarr")
    fitted.save("memory://killed.zarr")
    np.testing.assert_array_equal(load_model("memory://killed.zarr").predict(X), fitted.predict(X))


def test_a_dataset_is_never_replaced_by_a_model(fitted: Any, tmp_path: Path) -> None:
    dkl.create_dataset(tmp_path / "rows.zarr", X, LABELS)
    with pytest.raises(FileExistsError, match="is a dataset"):
        fitted.save(tmp_path / "rows.zarr", overwrite=True)
    with pytest.raises(StoreError, match="open_dataset"):
        load_model(tmp_path / "rows.zarr")


def test_other_things_are_not_taken_for_models(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no model at"):
        load_model(tmp_path / "nothing.zarr")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("x")
    with pytest.raises(StoreError, match="not a model"):
        load_model(tmp_path / "other")
    zarr.create_group(str(tmp_path / "plain.zarr"))
    with pytest.raises(StoreError, match="not a model"):
        load_model(tmp_path / "plain.zarr")


class Holder(BaseEstimator):
    """An estimator that keeps something."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def fit(self) -> Holder:
        self.done_ = True
        return self


@pytest.mark.parametrize(
    ("held", "part"),
    [
        (print, r"Holder\.held is a builtin_function"),
        (np.array([1, "a", None], dtype=object), r"Holder\.held is an array of object"),
        ([1.0, {"x": object()}], r"Holder\.held\[1\]\['x'\] is a object"),
        (LogisticRegression, r"Holder\.held is a type"),
    ],
)
def test_what_cannot_be_written_is_named(held: Any, part: str, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=part):
        save(Holder(held).fit(), tmp_path / "model.zarr")
    assert not any(tmp_path.iterdir())


def test_values_come_back_as_they_were(tmp_path: Path) -> None:
    held = [
        None,
        True,
        -3,
        2.5,
        float("inf"),
        (1, ("a", [2.0])),
        {"a": 1, 2: "b"},
        np.float32(1.5),
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.zeros((0, 3)),
        np.array(7.0),
        np.array(["x", "yy"]),
        np.array(["x", "yy"], dtype=object),
        np.dtype("float32"),
    ]
    save(Holder(held).fit(), tmp_path / "model.zarr")
    loaded = load_model(tmp_path / "model.zarr", classes=[Holder]).held
    for before, after in zip(held, loaded, strict=True):
        assert type(before) is type(after)
        if isinstance(before, np.ndarray):
            assert before.dtype.newbyteorder("=") == after.dtype
            np.testing.assert_array_equal(before, after)
        else:
            assert before == after


def test_an_unfitted_model_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        classifier().save(tmp_path / "model.zarr")


def test_sparse_frequencies_are_saved_as_their_entries(tmp_path: Path) -> None:
    supports = np.random.default_rng(0).random((30, 50)) < 0.05
    projection = SparseProjection.from_rows(np.random.default_rng(1).normal(size=(30, 50)), supports)
    saved_map = FeatureMap("cos-sin", projection, np.ones(30))
    rows_of_map = np.random.default_rng(2).normal(size=(20, 50))
    before = map_rows(rows_of_map, saved_map)
    save(saved_map, tmp_path / "map.zarr")
    loaded = load_model(tmp_path / "map.zarr")
    assert isinstance(loaded.projection, SparseProjection)
    np.testing.assert_array_equal(loaded.projection.indices, projection.indices)
    np.testing.assert_array_equal(map_rows(rows_of_map, loaded), before)

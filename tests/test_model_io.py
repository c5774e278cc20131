"""Saved models predict the same bits, and a file is never trusted: no pickle, no strange class, nothing half-done."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import shutil
import subprocess
import sys
import tracemalloc
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
from dkl.data.coerce import as_dataset
from dkl.errors import CorruptChunkError, StoreError
from dkl.features.families import ArcCosine, Cauchy, Coordinates, Gaussian, Laplacian, Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import SparseProjection
from dkl.features.sparse_frequencies import SparseFrequencies
from dkl.kernels.maps import map_rows
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.peaks.learner import PeakFeatures
from dkl.methods.posterior.learner import PosteriorFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.model_io import FORMAT, content_hash, load_model, save
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


def test_a_model_of_the_first_release_still_loads_and_predicts() -> None:
    """Written by dkl 0.1 on these rows, before markers had shapes and a digest of their own."""
    model = load_model(Path(__file__).parent / "written" / "model-0.1")
    assert np.mean(model.predict(X) == LABELS) > 0.6
    np.testing.assert_array_equal(model.predict_proba(X).argmax(axis=1), model.decision_function(X).argmax(axis=1))


Edit = Callable[[dict[str, Any]], Any]


def fields(marker: dict[str, Any], *path: str) -> dict[str, Any]:
    """The fields of the model, or of an object in it."""
    found = marker["model"]["fields"]
    for name in path:
        found = found[name]["fields"]
    return found


def without(name: str, *path: str) -> Edit:
    return lambda marker: fields(marker, *path).pop(name)


def with_field(name: str, value: Any, *path: str) -> Edit:
    return lambda marker: fields(marker, *path).update({name: value})


def nested(depth: int) -> Any:
    """Lists in lists, as text: json cannot write them either."""
    return "[" * depth + "]" * depth


# edits that are refused by what they make of the model, in files of the first release too
WRONG: dict[str, Edit] = {
    **{f"no {key}": lambda m, key=key: m.pop(key) for key in ("format", "model", "digests", "kind", "state", "token")},
    "format 0": lambda m: m.update(format=0),
    "format -1": lambda m: m.update(format=-1),
    "format true": lambda m: m.update(format=True),
    "format as text": lambda m: m.update(format="1"),
    "format null": lambda m: m.update(format=None),
    "format 1.5": lambda m: m.update(format=1.5),
    "the model is a list": lambda m: m.update(model=[]),
    "the model is null": lambda m: m.update(model=None),
    "the model is a number": lambda m: m.update(model=7),
    "the model is a tuple": lambda m: m.update(model={"tuple": []}),
    "digests are a dict": lambda m: m.update(digests={}),
    "digests are too few": lambda m: m["digests"].clear(),
    "digests are texts": lambda m: m.update(digests=[str(one) for one in m["digests"]]),
    "fields are a list": lambda m: m["model"].update(fields=[]),
    "fields are null": lambda m: m["model"].update(fields=None),
    "a class that is a list": lambda m: m["model"].update(object=[]),
    "a class of another kind": lambda m: m["model"].update(object="Gaussian"),
    "an unknown family": lambda m: fields(m, "features_")["family_"].update(object="Student"),
    "an unknown loss": with_field("loss", "cauchy"),
    "a loss that is a list": with_field("loss", ["hinge"]),
    "an unknown solver": with_field("solver", "prayer"),
    "a penalty below 0": with_field("alpha", -1.0),
    "a penalty of NaN": with_field("alpha", {"number": "nan"}),
    "epochs as text": with_field("epochs", "two"),
    "an unknown activation": with_field("activation", "tanh", "features_", "feature_map_"),
    "a map that is a list": with_field("feature_map_", [], "features_"),
    "no map": with_field("feature_map_", None, "features_"),
    "a projection that is a number": with_field("projection", 3, "features_", "feature_map_"),
    "no projection": without("projection", "features_", "feature_map_"),
    "amplitudes that are null": with_field("amplitudes", None, "features_", "feature_map_"),
    "no amplitudes": without("amplitudes", "features_", "feature_map_"),
    "amplitudes of another length": lambda m: fields(m, "features_", "feature_map_").update(
        amplitudes=fields(m, "linear_")["intercept_"]
    ),
    "a bandwidth of -1": with_field("sigma", -1.0, "features_", "family_"),
    "a bandwidth that is a dict": with_field("sigma", {"dict": []}, "features_", "family_"),
    "features that are a list": with_field("features_", []),
    "a linear model that is null": with_field("linear_", None),
    "no coefficients": without("coef_", "linear_"),
    "coefficients that are text": with_field("coef_", "many", "linear_"),
    "coefficients of another shape": lambda m: fields(m, "linear_").update(
        coef_=fields(m, "features_", "feature_map_")["amplitudes"]
    ),
    "a class too few": with_field("classes_", {"texts": ["ape", "bee", "cat", "dog"], "shape": [4], "dtype": "<U3"}),
    "classes of another shape": with_field("classes_", {"texts": ["ape"], "shape": [3], "dtype": "<U3"}),
    "classes without a shape": with_field("classes_", {"texts": ["ape"], "dtype": "<U3"}),
    "classes that ask for gigabytes": with_field(
        "classes_", {"texts": ["ape", "bee", "cat"], "shape": [3], "dtype": "<U300000000"}
    ),
    "a dict that is a number": with_field("message_", {"dict": 3}),
    "a dict with lists for keys": with_field("message_", {"dict": [[[], 1]]}),
    "a dict of triples": with_field("message_", {"dict": [[1, 2, 3]]}),
    "a tuple that is null": with_field("message_", {"tuple": None}),
    "a number that is a word": with_field("alpha_", {"number": "many"}),
    "a number that is a list": with_field("alpha_", {"number": []}),
    "a dtype that is none": with_field("message_", {"dtype": "<f3"}),
    "an entry without a tag": with_field("message_", {}),
    "an array that is null": lambda m: first_array(m["model"]).update(array=None),
    "an array that is a list": lambda m: first_array(m["model"]).update(array=["0"]),
    "one array twice": lambda m: fields(m, "linear_").update(intercept_=fields(m, "linear_")["coef_"]),
    "a huge number": with_field("epochs", 10**400),
}
# edits that give a sound model, another than was saved
OTHER: dict[str, Edit] = {
    "no version": lambda m: m.pop("version"),
    "no digest": lambda m: m.pop("digest"),
    "no shapes": lambda m: m.pop("arrays"),
    "no seed": without("seed_"),
    "no classes": without("classes_"),
    "no features": without("features_"),
    "no linear model": without("linear_"),
    "another loss": with_field("loss", "log_loss"),
    "other names of classes": with_field("classes_", {"texts": ["ant", "bee", "cat"], "shape": [3], "dtype": "<U3"}),
    "another temperature": with_field("temperature_", 2.0),
    "another device": with_field("device", "gpu"),
}


def test_the_token_says_who_wrote_a_folder_and_nothing_of_the_model(saved: Path) -> None:
    """As in a store: it tells a writer's own folder from that of another, and is set when the model is complete."""
    known = dkl.load_model(saved)
    node = json.loads((saved / "zarr.json").read_text())
    (marker,) = (value for value in node["attributes"].values() if isinstance(value, dict) and "token" in value)
    marker["token"] = "0" * 32
    (saved / "zarr.json").write_text(json.dumps(node))
    assert content_hash(dkl.load_model(saved)) == content_hash(known)
    del marker["token"]
    (saved / "zarr.json").write_text(json.dumps(node))
    with pytest.raises(StoreError, match="describes no model"):
        dkl.load_model(saved)


@pytest.mark.parametrize("name", [*OTHER, "digests are too few"])
def test_a_hand_edit_of_a_model_that_signs_its_metadata_is_a_store_error(name: str, saved: Path) -> None:
    edit(saved, {**WRONG, **OTHER}[name])
    with pytest.raises(StoreError):
        load_model(saved)


@pytest.fixture(scope="module")
def of_first_release(fitted: KernelClassifier, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a model and its sound metadata, which each test writes anew."""
    store = tmp_path_factory.mktemp("first") / "model.zarr"
    fitted.save(store)
    edit(store, lambda marker: (marker.pop("arrays"), marker.pop("digest")))
    return store, (store / "zarr.json").read_text()


@pytest.mark.parametrize("name", WRONG)
def test_edits_of_a_model_of_the_first_release_are_refused_by_what_they_say(
    name: str, of_first_release: tuple[Path, str]
) -> None:
    store, sound = of_first_release
    (store / "zarr.json").write_text(sound)
    edit(store, WRONG[name])
    with pytest.raises(StoreError):
        load_model(store)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: nested(100_000),
        lambda text: text.replace('"message_": "', '"message_": ' + nested(50_000) + ', "more": "'),
        lambda text: text.replace('"alpha_": 1e-05', '"alpha_": NaN'),
        lambda text: text.replace('"alpha_": 1e-05', '"alpha_": 1e999'),
        lambda text: text.replace('"alpha_": 1e-05', '"alpha_": ' + "9" * 5_000),
        lambda text: text.replace('"zarr_format": 3', '"zarr_format": 2'),
        lambda text: text.replace('"node_type": "group"', '"node_type": "array"'),
        lambda text: text.replace("attributes", "adjectives"),
        lambda text: text[:-20],
        lambda text: "",
        lambda text: "[]",
        lambda text: "null",
        lambda text: "\ud800",
    ],
)
def test_metadata_that_is_no_metadata_is_a_store_error(change: Callable[[str], str], saved: Path) -> None:
    text = json.dumps(json.loads((saved / "zarr.json").read_text()))
    changed = change(text)
    assert changed != text
    (saved / "zarr.json").write_bytes(changed.encode("utf-8", "surrogatepass"))
    with pytest.raises(StoreError):
        load_model(saved)


def metadata(store: Path, array: str, **changes: Any) -> None:
    """Change the metadata of one array in place."""
    path = store / array / "zarr.json"
    node = json.loads(path.read_text())
    for name, value in changes.items():
        node[name] = value
    path.write_text(json.dumps(node))


HUGE = 25_000
GRID = {"name": "regular", "configuration": {"chunk_shape": [HUGE, HUGE]}}


def bomb(store: Path) -> None:
    """2.5 GB of zeros in a file of some kilobytes, with metadata that says so."""
    from numcodecs import Zstd

    metadata(store, "0", shape=[HUGE, HUGE], chunk_grid=GRID)
    chunk = bytes(Zstd(level=1).encode(np.zeros(1 << 26, np.uint8)))
    (store / "0" / "c" / "0" / "0").write_bytes(chunk)


def frame_bomb(store: Path) -> None:
    """A chunk that decodes to more than its shape."""
    from numcodecs import Zstd

    (store / "0" / "c" / "0" / "0").write_bytes(bytes(Zstd(level=1).encode(np.zeros(1 << 28, np.uint8))))


BOMBS: dict[str, Callable[[Path], None]] = {
    "a huge shape": lambda store: metadata(store, "0", shape=[HUGE, HUGE]),
    "a huge shape in one chunk": lambda store: metadata(store, "0", shape=[HUGE, HUGE], chunk_grid=GRID),
    "a huge shape in tiny chunks": lambda store: metadata(
        store, "0", shape=[HUGE, HUGE], chunk_grid={"name": "regular", "configuration": {"chunk_shape": [10, 6]}}
    ),
    "a chunk of zeros": bomb,
    "a frame larger than its shape": frame_bomb,
    "another dtype": lambda store: metadata(store, "0", data_type="float64"),
    "no shape": lambda store: metadata(store, "0", shape=None),
    "codecs that are none": lambda store: metadata(store, "0", codecs=[{"name": "magic"}]),
    "a list for metadata": lambda store: (store / "0" / "zarr.json").write_text("[]"),  # type: ignore[dict-item]
    "a lost chunk": lambda store: (store / "0" / "c" / "0" / "0").unlink(),
}


@pytest.mark.parametrize("release", ["first", "this"])
@pytest.mark.parametrize("name", BOMBS)
def test_a_small_folder_takes_little_memory_whatever_it_says(name: str, release: str, saved: Path) -> None:
    if release == "first":
        edit(saved, lambda marker: (marker.pop("arrays"), marker.pop("digest")))
    load_model(saved)
    BOMBS[name](saved)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match="array 0"):
            load_model(saved)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_large_array_of_one_value_comes_back(tmp_path: Path) -> None:
    """What is far smaller on disk than in memory is not taken for a bomb when `save` wrote it."""
    save(Holder(np.zeros(20 << 20)).fit(), tmp_path / "model.zarr")
    assert not load_model(tmp_path / "model.zarr", classes=[Holder]).held.any()


@pytest.fixture(scope="module")
def scaled() -> KernelClassifier:
    return classifier(features=RandomFeatures(n_features=20, scaling="standard"), calibrate=True).fit(X, LABELS)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (("features_", "feature_map_", "projection"), "DenseProjection.matrix", np.nan),
        (("features_", "feature_map_"), "FeatureMap.amplitudes", np.inf),
        (("features_", "feature_map_", "scaler"), "Scaler.scale", np.nan),
        (("features_", "feature_map_", "scaler"), "Scaler.center", np.inf),
        (("linear_",), "SGDClassifier.coef_", np.nan),
        (("linear_",), "SGDClassifier.intercept_", np.inf),
        ((), "KernelClassifier.target_scale_", np.nan),
        ((), "KernelClassifier.temperature_", np.inf),
    ],
)
def test_a_model_with_a_number_that_is_not_finite_is_refused_by_name(
    path: tuple[str, ...], name: str, value: float, scaled: KernelClassifier, tmp_path: Path
) -> None:
    model = copy.deepcopy(scaled)
    holder: Any = model
    for part in path:
        holder = getattr(holder, part)
    attribute = name.partition(".")[2]
    spoiled = np.array(getattr(holder, attribute))
    spoiled.flat[-1] = value
    if dataclasses.is_dataclass(holder):
        object.__setattr__(holder, attribute, spoiled)
    else:
        setattr(holder, attribute, spoiled if spoiled.ndim else float(spoiled))
    model.save(tmp_path / "model.zarr")
    with pytest.raises(StoreError, match=rf"{name} of the model holds {value}"):
        load_model(tmp_path / "model.zarr")

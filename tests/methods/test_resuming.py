"""A checkpoint resumes the run that made it, and refuses every other one before a row is read."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import dkl
from dkl.errors import StoreError
from dkl.methods.checkpoints import run_fingerprint
from dkl.methods.random_features import RandomFeatures
from dkl.registry import learner_classes
from tests.chaos.fits import EXACT, SMALL, on

SEARCHED = {"search_rows": 50, "n_features": 6}
FITS: dict[str, Any] = {
    "random": RandomFeatures(n_features=6, **SMALL),
    "aligned": dkl.AlignedFeatures(n_candidates=20, n_features=6, **SMALL),
    "posterior": dkl.PosteriorFeatures(n_candidates=20, n_features=6, **SMALL),
    "landmarks": dkl.LandmarkFeatures(n_landmarks=4, n_candidates=5, **SMALL),
    "leverage": dkl.LeverageFeatures(n_candidates=20, n_features=6, **SMALL),
    "peaks": dkl.PeakFeatures(**SEARCHED, **SMALL),
    "margin": dkl.MarginFeatures(**SEARCHED, **SMALL),
    "game": dkl.MarginFeatures(**SEARCHED, solver="game", **SMALL),
    "joint": dkl.JointFeatures(n_candidates=20, **SMALL),
    "nystrom": dkl.NystromFeatures(n_features=6, **SMALL),
    "steps": dkl.StepFeatures(n_features=6, search_rows=None, random_state=0, progress=False),
    "dictionaries": dkl.MarginFeatures([dkl.Gaussian(), dkl.Steps(), dkl.Landmarks()], **SEARCHED, **SMALL),
    "metric": dkl.NystromFeatures(n_features=6, metric="full", **SMALL),
    "tuned classifier": dkl.TunedClassifier(n_features=6, solver="adam", epochs=1, **SMALL),
    "tuned regressor": dkl.TunedRegressor(n_features=6, solver="full", max_passes=3, tol=1.0, **SMALL),
    "classifier by epochs": on(RandomFeatures(n_features=6, **SMALL), epochs=1, calibrate=True),
    "classifier by Newton steps": on(RandomFeatures(n_features=6, **SMALL), **EXACT),
    "regressor": dkl.KernelRegressor(RandomFeatures(n_features=6, **SMALL), epochs=1, random_state=0, progress=False),
}


def rows(kind: str, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((120, 3))
    return scale * X, (X[:, 0] if "regressor" in kind else (X[:, 0] * X[:, 1] > 0).astype(int))


def test_every_learner_is_among_these() -> None:
    assert {*learner_classes(), "tuned classifier", "tuned regressor"} <= {*FITS}


class Broken(Exception):
    """What breaks a fit off."""


def before_the_first_pass(event: Any) -> None:
    raise Broken


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", FITS)
def test_another_run_is_refused_before_any_pass(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit = clone(FITS[kind]).set_params(checkpoint=str(tmp_path / "run"), progress=before_the_first_pass)
    with pytest.raises(Broken):
        clone(fit).fit(*rows(kind))
    with pytest.raises(StoreError, match="another run"):
        clone(fit).set_params(random_state=1).fit(*rows(kind))
    with pytest.raises(StoreError, match="another run"):
        clone(fit).fit(*rows(kind, scale=2.0))
    with monkeypatch.context() as patch:
        patch.setattr("dkl.methods.checkpoints.__version__", "999")
        with pytest.raises(StoreError, match="another run"):
            clone(fit).fit(*rows(kind))
    with pytest.raises(Broken):
        clone(fit).fit(*rows(kind))


def test_rows_that_are_held_back_otherwise_make_another_run(tmp_path: Path) -> None:
    searched = on(dkl.PeakFeatures(**SEARCHED, **SMALL), **{**EXACT, "alpha": "auto"})
    machine = searched.set_params(checkpoint=str(tmp_path / "run"), validation_fraction=0.3)
    clone(machine).fit(*rows("peaks"))
    with pytest.raises(StoreError, match="another run"):
        clone(machine).set_params(validation_fraction=0.2).fit(*rows("peaks"))


def test_long_arrays_among_the_parameters_count_to_their_last_number() -> None:
    dataset = dkl.create_dataset("memory://resuming/rows.zarr", *rows("aligned"), overwrite=True)
    factors = np.linspace(0.5, 2.0, 2_000)
    changed = np.where(np.arange(2_000) == 1_000, 1.25, factors)
    first, second = (dkl.AlignedFeatures(sigma_factors=given, checkpoint="run") for given in (factors, changed))
    assert run_fingerprint(first, dataset) != run_fingerprint(second, dataset)


PLACES: dict[str, tuple[Any, type[Exception], str]] = {
    "a file": (lambda place: place.write_text("mine"), NotADirectoryError, "is a file"),
    "an empty file": (lambda place: place.touch(), NotADirectoryError, "is a file"),
    "a dataset": (lambda place: dkl.create_dataset(place, *rows("random")), StoreError, "is a dataset"),
    "a model": (
        lambda place: RandomFeatures(n_features=6, **SMALL).fit(rows("random")[0]).save(place),
        StoreError,
        "is a model",
    ),
}


@pytest.mark.parametrize("inside", ["", "run"])
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("kind", ["random", "classifier by Newton steps", "tuned regressor"])
def test_a_checkpoint_is_a_folder_of_its_own(kind: str, name: str, inside: str, tmp_path: Path) -> None:
    make, error, says = PLACES[name]
    make(tmp_path / "place")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    says = (
        says
        if not inside
        else {"is a dataset": "lies inside the dataset", "is a model": "inside the model"}.get(says, "under a file")
    )
    with pytest.raises(error, match=says):
        clone(FITS[kind]).set_params(checkpoint=str(tmp_path / "place" / inside)).fit(*rows(kind))
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_an_error_says_what_differs_from_the_run_of_a_checkpoint(tmp_path: Path) -> None:
    X, y = rows("classifier")

    def refused(X: Any, estimator: Any) -> str:
        with pytest.raises(StoreError, match=r"belongs to another run \(these differ: [^()]*\); choose") as caught:
            estimator.set_params(checkpoint=str(tmp_path / "run")).fit(X, y)
        return str(caught.value).partition("differ: ")[2].partition(")")[0]

    learner = dkl.RandomFeatures(n_features=6, random_state=0, progress=False)
    clone(learner).set_params(checkpoint=str(tmp_path / "run")).fit(X, y)
    assert refused(X + 1.0, clone(learner)) == "the rows"
    assert refused(X, clone(learner).set_params(n_features=8)) == "n_features"
    assert (
        refused(X + 1.0, clone(learner).set_params(random_state=1, n_features=8))
        == "the rows, n_features, random_state"
    )


def test_an_interrupted_fit_says_that_its_checkpoint_goes_on(tmp_path: Path) -> None:
    X, y = rows("classifier")

    def stopped(event: Any) -> None:
        raise KeyboardInterrupt

    for store, notes in ((None, 0), (str(tmp_path / "run"), 1)):
        with pytest.raises(KeyboardInterrupt) as caught:
            dkl.AlignedFeatures(n_candidates=20, n_features=6, checkpoint=store, progress=stopped).fit(X, y)
        said = getattr(caught.value, "__notes__", [])
        assert said.count("run again with the same checkpoint, it goes on after the last finished pass") == notes


def test_three_fits_on_one_checkpoint_one_after_another_and_at_once(tmp_path: Path) -> None:
    """The same fit resumes, another one is told; at once, those that come second are told, and one ends."""
    X, y = rows("classifier")

    def fit(sigma: float, place: str) -> str:
        learner = dkl.AlignedFeatures(dkl.Gaussian(sigma), n_candidates=20, n_features=6, **SMALL)
        try:
            on(learner, epochs=2).set_params(checkpoint=str(tmp_path / place)).fit(X, y)
        except StoreError as error:
            return str(error)
        return "ended"

    assert [fit(1.0, "after"), fit(1.0, "after")] == ["ended", "ended"]
    assert "belongs to another run" in fit(2.0, "after")
    with ThreadPoolExecutor(3) as threads:
        said = list(threads.map(lambda sigma: fit(sigma, "at once"), (1.0, 2.0, 3.0)))
    assert all(one == "ended" or "another run" in one or "another fit" in one for one in said), said

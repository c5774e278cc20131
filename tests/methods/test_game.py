"""The game as a learner: on any cluster, after a kill at any moment, and with what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

import dkl
from dkl.features.families import Coordinates, Gaussian
from dkl.linear.minibatches import HeldOut
from dkl.methods.fit_context import FitContext
from dkl.methods.margin.learner import MarginFeatures

PROGRAM = """
import sys, dask, numpy as np
import dkl
from tests.methods.test_game import learner, rows, learned
folder = sys.argv[1]
with dask.config.set(scheduler="threads", num_workers=2):
    fitted = learner(checkpoint=folder + "/checkpoint", progress=None).fit(dkl.open_dataset(folder + "/rows.zarr"))
np.savez(folder + "/learned.npz", **learned(fitted))
"""


def rows(n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((n, 4)).astype(np.float32)
    return X, np.where(X[:, 0] * X[:, 1] > 0, "yes", "no")


def learner(**parameters: Any) -> MarginFeatures:
    settings: dict[str, Any] = {"chains": 10, "steps": 5, "search_rows": 150, "random_state": 0, "progress": False}
    return MarginFeatures(n_features=8, solver="game", features_per_round=2, **{**settings, **parameters})


def dense(fitted: MarginFeatures) -> np.ndarray:
    return np.asarray(fitted.feature_map_.projection.dense())


def learned(fitted: MarginFeatures) -> dict[str, np.ndarray]:
    history = np.array(
        [[entry[name] for name in ("upper", "lower", "margin", "at_bound")] for entry in fitted.history_]
    )
    return {
        "frequencies": dense(fitted),
        "weights": fitted.weights_,
        "coef": fitted.coef_,
        "history": history,
        "dual": np.asarray(fitted.dual_.compute()),
    }


def assert_same(found: Any, expected: Any) -> None:
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def undisturbed(dataset: Any) -> dict[str, np.ndarray]:
    with dask.config.set(scheduler="synchronous"):
        return learned(learner().fit(dataset))


def test_two_worker_processes_play_the_game_of_one_thread(tmp_path: Path, client: object) -> None:
    dataset = dkl.create_dataset(str(tmp_path / "rows.zarr"), *rows(), rows_a_block=90)
    on_cluster = learned(learner().fit(dataset))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dkl.passes.backends.current_client", lambda: None)
        assert_same(on_cluster, undisturbed(dataset))


def killed_once(folder: Path, delay: float, program: str = PROGRAM, stage: str = "game") -> bool:
    """Whether a fit in a process of its own was killed before its end, so long after its first checkpoint."""
    root = Path(__file__).parents[2]
    fit = subprocess.Popen([sys.executable, "-c", program, str(folder)], cwd=root)
    began = time.monotonic()
    while not (folder / "checkpoint" / stage).exists() and fit.poll() is None and time.monotonic() - began < 60:
        time.sleep(0.005)
    time.sleep(delay)
    alive = fit.poll() is None
    if alive:
        os.kill(fit.pid, signal.SIGKILL)
    fit.wait()
    return alive


def resumed(tmp_path: Path, delays: list[float]) -> tuple[Any, int]:
    """What is learned by a fit that is killed after each of these seconds of playing, and how often it was."""
    kills = sum(killed_once(tmp_path, delay) for delay in delays)
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=root, check=True)
    return np.load(tmp_path / "learned.npz"), kills


@pytest.mark.slow
def test_a_killed_game_goes_on_from_its_last_round_to_the_same_bits(tmp_path: Path) -> None:
    dataset = dkl.create_dataset(str(tmp_path / "rows.zarr"), *rows(), rows_a_block=90)
    found, kills = resumed(tmp_path, [0.3])
    assert kills == 1
    assert_same(found, undisturbed(dataset))


@pytest.mark.slow
def test_a_game_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    dataset = dkl.create_dataset(str(tmp_path / "rows.zarr"), *rows(), rows_a_block=90)
    delays = list(np.random.default_rng(0).uniform(0.0, 0.4, 12))
    found, kills = resumed(tmp_path, delays)
    assert kills >= 3
    assert_same(found, undisturbed(dataset))


def test_what_a_game_leaves_behind(tmp_path: Path) -> None:
    X, y = rows()
    fitted = learner().fit(X, y)
    assert fitted.weights_.sum() == pytest.approx(1.0)
    np.testing.assert_allclose(fitted.feature_map_.amplitudes**2, fitted.weights_, rtol=1e-12)
    assert fitted.transform(X).shape == (600, 8)
    dual = fitted.dual_.compute()
    signs = np.where(y == "yes", 1.0, -1.0)
    assert dual.shape == (600,)
    assert dual.min() >= 0.0
    assert dual.max() <= 1.0
    assert abs(signs @ dual) < 1e-9 * 600
    assert not fitted.certified_
    assert fitted.duality_gap_ == fitted.history_[-1]["relative_gap"]
    assert "duality gap" in fitted.message_
    for entry in fitted.history_:
        assert {"upper", "lower", "gap", "margin", "potential", "support", "at_zero", "at_bound"} <= entry.keys()


def test_the_machine_of_a_game_predicts() -> None:
    X, y = rows()
    fitted = learner(steps=10).set_params(n_features=16).fit(X, y)
    assert fitted.machine_.score(X, y) > 0.9


@pytest.mark.parametrize("solver", ["game", "corrective"])
def test_every_round_tells_the_gap(solver: str) -> None:
    seen: list[Any] = []
    fitted = learner(progress=seen.append).set_params(solver=solver, features_per_round=4).fit(*rows())
    told = [event.detail["duality_gap"] for event in seen if event.name == "rounds" and "duality_gap" in event.detail]
    assert told[-1] == fitted.duality_gap_
    assert len(set(told)) == len({entry.get("relative_gap", entry.get("duality_gap")) for entry in fitted.history_})


@pytest.mark.parametrize(
    "parameters",
    [{"patience": 3}, {"family": Coordinates(), "dynamics": "excessive-gap"}],
    ids=["patience", "excessive gap"],
)
def test_a_game_does_not_learn_from_the_rows_that_a_machine_withholds(parameters: dict[str, Any]) -> None:
    X, y = rows()
    withheld = HeldOut(0.2, 7, 0.4)
    is_withheld = withheld.mask(np.arange(len(y)))
    others = np.where(is_withheld, np.where(y == "yes", "no", "yes"), y)

    def weights(y: np.ndarray) -> np.ndarray:
        played = learner(rounds=4, **parameters)
        played._context = FitContext(withheld=withheld, for_machine=True)
        return played.fit(X, y).coef_

    assert 0 < is_withheld.sum() < len(y) / 2
    np.testing.assert_array_equal(weights(others), weights(y))


def test_three_classes_share_one_set_of_features() -> None:
    X = rows()[0]
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    fitted = learner().set_params(n_features=16).fit(X, y)
    assert fitted.coef_.shape == (3, 16)
    assert fitted.dual_.compute().shape == (600, 3)
    assert fitted.machine_.score(X, y) > 0.8


def test_a_finite_family_is_weighed_as_a_whole_and_certified() -> None:
    X, y = rows()
    y = np.where(X[:, 2] > 0.1, "yes", "no")
    fitted = MarginFeatures(Coordinates(), n_features=3, solver="game", rounds=50, random_state=0).fit(X, y)
    assert fitted.certified_
    assert fitted.duality_gap_ < 0.3
    assert len(fitted.weights_) <= 3
    assert fitted.weights_.max() == fitted.weights_[np.flatnonzero(fitted.feature_map_.projection.columns == 2)[0]]
    assert fitted.machine_.score(X, y) > 0.9


@pytest.mark.slow
def test_the_excessive_gap_is_the_same_game_certified(tmp_path: Path) -> None:
    X, y = rows(200)
    y = np.where(X[:, 2] > 0.1, "yes", "no")
    dataset = dkl.create_dataset(str(tmp_path / "rows.zarr"), X, y, rows_a_block=90)
    parameters: dict[str, Any] = {"n_features": 4, "solver": "game", "rounds": 20, "random_state": 0}
    certified = MarginFeatures(Coordinates(), dynamics="excessive-gap", **parameters).fit(dataset)
    played = MarginFeatures(Coordinates(), **parameters).fit(dataset)
    first, second = (fitted.history_[-1] for fitted in (certified, played))
    assert certified.certified_
    assert certified.duality_gap_ < 0.7
    assert max(first["lower"], second["lower"]) <= min(first["upper"], second["upper"])
    assert certified.machine_.score(X, y) > 0.9


@pytest.mark.parametrize(
    ("parameters", "y", "message"),
    [
        ({}, np.linspace(0, 1, 600), "learns from class labels"),
        ({"loss": "log_loss"}, None, "loss='hinge' or loss='squared_hinge'"),
        ({"family": Gaussian(1.0, pairing="phase")}, None, "use pairing='cos-sin'"),
        ({"dynamics": "excessive-gap"}, None, "needs a finite set of features"),
        ({"family": Coordinates(), "dynamics": "excessive-gap", "projection": "alternating"}, None, "'exact'"),
    ],
)
def test_what_a_game_is_not_for_is_refused(parameters: dict[str, Any], y: Any, message: str) -> None:
    X, labels = rows()
    with pytest.raises(ValueError, match=message):
        learner(**parameters).fit(X, labels if y is None else y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parameters",
    [
        {"family": Coordinates(), "rounds": 5},
        pytest.param({"family": Coordinates(), "rounds": 5, "projection": "alternating"}, marks=pytest.mark.slow),
        pytest.param({"family": Coordinates(), "rounds": 3, "dynamics": "excessive-gap"}, marks=pytest.mark.slow),
    ],
)
def test_a_warm_start_on_a_finite_family_gives_the_bits_of_one_longer_game(parameters: dict[str, Any]) -> None:
    X, y = rows(300)
    more = {**parameters, "n_features": 4, "solver": "game", "random_state": 0}
    in_turn = MarginFeatures(**more).fit(X, y)
    in_turn.set_params(warm_start=True).fit(X, y)
    at_once = MarginFeatures(**{**more, "rounds": 2 * parameters["rounds"]}).fit(X, y)
    assert len(in_turn.history_) == 2 * parameters["rounds"]
    assert_same(learned(in_turn), learned(at_once))


def test_a_warm_start_adds_frequencies_to_a_game_and_plays_on() -> None:
    X, y = rows()
    fitted = learner().fit(X, y)
    frequencies, lower = dense(fitted).copy(), fitted.history_[-1]["lower"]
    first_dual = fitted.dual_
    before = first_dual.compute()
    # the seed that is drawn anew is not the game's: rows held out must stay the same ones
    fitted.set_params(warm_start=True, n_features=16, random_state=None).fit(X, y)
    np.testing.assert_array_equal(dense(fitted)[:4], frequencies)
    assert fitted.feature_map_.n_features == 16
    assert [entry["round"] for entry in fitted.history_] == list(range(1, 9))
    assert fitted.history_[-1]["lower"] >= lower
    assert fitted.seed_ == 0
    signs = np.where(y == "yes", 1.0, -1.0)
    assert abs(signs @ fitted.dual_.compute()) < 1e-9 * 600
    # the dual weights of the first fit are still its own, and its features are all that were asked for
    np.testing.assert_array_equal(first_dual.compute(), before)
    fitted.fit(X, y)
    assert len(fitted.history_) == 8
    fitted.set_params(rounds=2, n_features=18).fit(X, y)
    assert fitted.feature_map_.n_features == 18


def test_a_warm_start_refuses_what_the_dual_weights_do_not_belong_to(tmp_path: Path) -> None:
    X, y = rows()
    fitted = learner().fit(X, y)
    fitted.save(str(tmp_path / "model"))
    fitted.set_params(warm_start=True, n_features=16)
    with pytest.raises(ValueError, match="have changed: the rows, C; set warm_start=False"):
        fitted.set_params(C=2.0).fit(X[1:], y[1:])
    with pytest.raises(ValueError, match="there are none"):
        dkl.load_model(str(tmp_path / "model")).set_params(warm_start=True).fit(X, y)
    assert fitted.set_params(warm_start=False).fit(X[1:], y[1:]).feature_map_.n_features == 16


def test_a_warm_start_that_was_broken_off_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    X, y = rows()
    whole = learner().fit(X, y).set_params(warm_start=True, n_features=16).fit(X, y)
    seen: list[Any] = []

    def stop(event: Any) -> None:
        seen.append(event)
        if event.name == "rounds" and event.kind == "advanced" and event.done == 5:
            raise KeyboardInterrupt

    broken = learner(checkpoint=str(tmp_path / "first")).fit(X, y)
    broken.set_params(warm_start=True, n_features=16, checkpoint=str(tmp_path / "second"), progress=stop)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(X, y)
    again = learner(checkpoint=str(tmp_path / "first")).fit(X, y)
    again.set_params(warm_start=True, n_features=16, checkpoint=str(tmp_path / "second")).fit(X, y)
    assert_same(learned(again), learned(whole))

"""dkl.plan: what is printed before a fit is what the fit then does, and a limit that cannot be kept is refused."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import psutil
import pytest
from dask.utils import format_bytes
from scipy.sparse import csr_array
from sklearn.base import clone
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.data.coerce import as_dataset
from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset
from dkl.errors import MemoryLimitError
from dkl.features.families import Gaussian
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.machines.usual_time import seems_linear
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.density.learner import TunedClassifier
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.peaks.learner import PeakFeatures
from dkl.methods.posterior.learner import PosteriorFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.methods.room import planned_kinds
from dkl.passes.timing import Seconds, TimedRows
from dkl.planning import plan
from dkl.process import give_back_memory
from dkl.protocols.block import Block
from dkl.protocols.driver import BETWEEN_PASSES, largest_held, with_passes
from dkl.protocols.records import Accumulator, BlockSum, Cost

LEARNERS = [
    RandomFeatures(n_features=20),
    RandomFeatures(Gaussian(1.0), n_features=20),
    AlignedFeatures(n_candidates=100, n_features=20, scaling="minmax"),
    AlignedFeatures(Gaussian(1.0, pairing="phase"), 100, 20, diagonal=False),
    PosteriorFeatures(n_candidates=100, n_features=20, scaling="quantile"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6_000, 8)).astype(np.float32)
    folder = tmp_path_factory.mktemp("store")
    return create_dataset(str(folder / "rows.zarr"), X, (X[:, 0] > 0).astype(int), rows_a_block=1_000)


@pytest.mark.parametrize("learner", LEARNERS, ids=repr)
def test_a_fit_makes_the_passes_of_its_plan(learner: Any, dataset: Dataset) -> None:
    planned = plan(learner, dataset)
    stats = learner.set_params(random_state=0, progress=False).fit(dataset).stats_
    assert [one.name for one in planned.passes for _ in range(one.calls)] == [one.name for one in stats]
    assert planned.n_passes == len(stats)
    assert planned.bytes_read == planned.n_passes * dataset.source.stored_nbytes
    # what is drawn and read by no pass is a kind of its own, of no calls
    assert [one.memory.total for one in planned.passes if one.calls] == pytest.approx(
        [one.projected_bytes for one in stats], rel=0.05
    )


@pytest.mark.parametrize(
    "machine",
    [
        KernelClassifier(LEARNERS[2], epochs=3, calibrate=True),
        KernelClassifier(LEARNERS[2], early_stopping=True, epochs=3),
        KernelClassifier(LEARNERS[0], solver="newton", loss="squared_hinge"),
        KernelClassifier("posterior"),
        KernelRegressor(LEARNERS[0], solver="newton"),
    ],
    ids=["epochs and calibration", "early stopping", "newton", "by name", "ridge"],
)
def test_a_machine_is_planned_from_its_features_to_its_last_pass(machine: Any, dataset: Dataset) -> None:
    rows = dataset
    if isinstance(machine, KernelRegressor):
        rows = as_dataset(np.ones((50, 3)) * np.arange(50)[:, None], np.arange(50) / 7)
    planned = plan(machine, rows)
    assert planned.n_passes >= 3
    assert planned.flops > 0.0
    assert not hasattr(machine, "seed_")
    assert planned.passes[0].name.startswith("row sample")


@pytest.mark.parametrize("stored", [True, False], ids=["a column of a store", "values"])
def test_a_plan_of_counts_knows_their_exposure(stored: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, years = rng.standard_normal((6_000, 5)), rng.uniform(0.5, 4.0, 6_000)
    y = rng.poisson(years * np.exp(0.5 * X[:, 0])).astype(float)
    features = MarginFeatures(n_features=20, loss="poisson", random_state=0)
    machine = KernelRegressor(features, loss="poisson", solver="newton", alpha=1e-3, progress=False)
    rows: Any = X, y
    if stored:
        frame = pd.DataFrame(np.column_stack([X, years]), columns=[*"abcde", "years"])
        rows = (create_dataset(str(tmp_path / "rows.zarr"), frame, y, rows_a_block=1_000),)
    exposure: Any = "years" if stored else years
    planned, blind = plan(machine, *rows, exposure=exposure), plan(machine, *rows)
    fitted = machine.fit(*rows, exposure=exposure).features_
    assert f"{5} columns" in planned.rows
    kinds = {one.name: one.memory.total for one in planned.passes if one.name != "exposures"}
    for one in fitted.stats_:
        assert one.projected_bytes <= 1.05 * kinds[next(name for name in kinds if name[:10] == one.name[:10])]
    largest = [max(one.memory.total for one in each.passes) for each in (planned, blind)]
    assert largest[0] > largest[1]
    assert [one.name for one in planned.passes].count("exposures") == stored
    with pytest.raises(ValueError, match="names no column of X" if stored else "there are 6000 rows"):
        plan(machine, *rows, exposure="months" if stored else years[:-1])
    with pytest.raises(ValueError, match="only the losses of counts and sizes"):
        plan(KernelRegressor(), *rows, exposure=exposure)


def test_a_plan_has_the_weights_of_the_fit() -> None:
    X = np.random.default_rng(0).standard_normal((200, 3))
    y, weight = (X[:, 0] > 0.0).astype(int), np.repeat([0.0, 1.5], 100)
    learner = RandomFeatures(n_features=10)
    assert dkl.plan(learner, X, y, sample_weight=weight).n_rows == 100
    frame = pd.DataFrame(X).rename(columns="x{}".format).assign(times=weight)
    planned = dkl.plan(learner, frame, y, sample_weight="times")
    assert planned.n_rows == 100
    assert "x 3 columns" in planned.rows


def test_a_plan_refuses_an_unknown_name_of_features_as_the_fit_does(dataset: Dataset) -> None:
    machine = KernelClassifier("linear")
    with pytest.raises(ValueError, match="The 'features' parameter of KernelClassifier must be") as of_fit:
        machine.fit(dataset)
    with pytest.raises(ValueError, match="The 'features' parameter") as of_plan:
        dkl.plan(machine, dataset)
    assert str(of_plan.value) == str(of_fit.value)


def test_the_epochs_of_a_plan_are_those_of_the_fit(dataset: Dataset) -> None:
    seen: list[Any] = []
    machine = KernelClassifier(LEARNERS[0], epochs=3, random_state=0, progress=seen.append)
    machine.features.set_params(progress=seen.append)
    planned = plan(machine, dataset)
    machine.fit(dataset)
    assert planned.n_passes == sum(event.kind == "started" and event.name != "rounds" for event in seen)


def test_a_plan_prints_its_sums_and_becomes_json(dataset: Dataset) -> None:
    import json

    planned = plan(LEARNERS[2], dataset)
    text = repr(planned)
    for part in ("AlignedFeatures", "row sample", "potentials", "peak a process", "in all", "GFLOP/s"):
        assert part in text
    assert any("row sample + moments" in cells for cells in planned.cells(verbose=True))
    assert "potentials" in planned._repr_html_()
    facts = json.loads(json.dumps(planned.facts))
    assert facts["n_passes"] == 2
    assert facts["peak_bytes"] == planned.peak_bytes == max(one.memory.total for one in planned.passes)


def test_features_of_a_sample_take_its_share_of_the_operations(dataset: Dataset) -> None:
    learners = AlignedFeatures(n_candidates=2_000, n_features=20), MarginFeatures(n_features=20, refine=2)
    for learner in learners:
        of_all, of_some = plan(learner, dataset), plan(clone(learner).set_params(max_rows=1_000), dataset)
        assert of_some.flops < 0.3 * of_all.flops
        assert of_some.bytes_read <= of_all.bytes_read, "every block is read, of which some rows are kept"


@pytest.mark.parametrize(
    "learner",
    [
        AlignedFeatures(n_candidates=30, n_features=100),
        PosteriorFeatures(n_candidates=30, n_features=100),
        dkl.LeverageFeatures(n_candidates=30, n_features=100),
        dkl.JointFeatures(n_candidates=30, n_features=100),
    ],
    ids=lambda learner: type(learner).__name__,
)
def test_a_plan_expects_no_more_features_than_there_are_candidates(learner: Any, dataset: Dataset) -> None:
    """A pair of a cosine and a sine is two features."""
    assert learner.planned_map(dataset).n_features == 60
    fitted = clone(learner).set_params(random_state=0, progress=False).fit(dataset)
    assert fitted.feature_map_.n_features <= 60


def test_flops_are_linear_in_rows_candidates_and_columns() -> None:
    def product(n: int, m: int, d: int) -> float:
        rows = as_dataset(np.zeros((n, d), np.float32), np.arange(n) % 2)
        return plan(AlignedFeatures(Gaussian(1.0), m), rows).flops

    assert product(2_000, 500, 300) == pytest.approx(2 * product(1_000, 500, 300))
    assert product(1_000, 1_000, 300) == pytest.approx(2 * product(1_000, 500, 300))
    assert product(1_000, 500, 30_000) == pytest.approx(100 * product(1_000, 500, 300), rel=0.1)


def test_a_limit_that_cannot_be_kept_is_refused_with_the_sum(dataset: Dataset) -> None:
    with pytest.raises(MemoryLimitError, match=r"(?s)potentials.*holds .* already.*memory_limit.*operands.*sum.*room"):
        plan(AlignedFeatures(Gaussian(1.0), 50_000, memory_limit="2 MiB"), dataset)
    roomy = plan(AlignedFeatures(Gaussian(1.0), 50_000, memory_limit="8 GiB"), dataset)
    assert roomy.room is not None
    assert roomy.room.held + roomy.peak_bytes <= 8 << 30


def test_a_plan_refuses_what_fit_would_refuse(dataset: Dataset) -> None:
    with pytest.raises(ValueError, match="'rho' parameter"):
        plan(AlignedFeatures(rho=-1.0), dataset)
    with pytest.raises(ValueError, match="'n_features' parameter"):
        plan(RandomFeatures(n_features=1), dataset)


@pytest.mark.parametrize("learner", [AlignedFeatures, "aligned"], ids=["class", "name"])
def test_a_plan_of_no_learner_says_what_one_is(learner: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a learner or machine of dkl, such as dkl.KernelClassifier\(\)"):
        plan(learner, np.ones((9, 2)), np.arange(9))


@pytest.mark.parametrize("learner", [AlignedFeatures(), TunedClassifier(), KernelRegressor("aligned")], ids=str)
def test_a_plan_of_what_learns_from_targets_needs_them(learner: Any) -> None:
    with pytest.raises(ValueError, match=f"{type(learner).__name__} requires y to be passed"):
        plan(learner, np.ones((9, 2)))


def test_two_workers_share_the_work_of_a_plan(dataset: Dataset, client: Any) -> None:
    assert plan(LEARNERS[2], dataset).slots == 2
    with dask.config.set(scheduler="synchronous"):
        assert plan(LEARNERS[2], dataset).slots == 1


def test_rows_in_memory_are_not_read(tmp_path: Path) -> None:
    planned = plan(RandomFeatures(n_features=4), np.random.default_rng(0).random((100, 3)))
    assert planned.bytes_read == 0
    assert planned.seconds < 1.0


def test_a_plan_of_a_dask_array_counts_what_computing_its_blocks_takes() -> None:
    def slowly(X: np.ndarray) -> np.ndarray:
        time.sleep(1.0)
        return X

    rows = da.random.default_rng(0).random((200, 3), chunks=(200, 3))
    at_once, slow = plan(RandomFeatures(), rows), plan(RandomFeatures(), rows.map_blocks(slowly, dtype=rows.dtype))
    assert slow.bytes_read == at_once.bytes_read == 0
    assert at_once.expected_seconds < 0.5
    assert 1.0 < slow.expected_seconds < 1.5


def test_a_plan_of_dask_rows_that_stay_in_memory_computes_their_blocks_once_and_counts_what_they_hold() -> None:
    def slowly(X: np.ndarray) -> np.ndarray:
        time.sleep(1.0)
        return X

    rows = da.random.default_rng(0).random((200, 3), chunks=(200, 3)).map_blocks(slowly, dtype=float)
    machine = KernelClassifier(RandomFeatures(n_features=10), solver="newton", alpha=1.0)
    planned = plan(machine, rows, np.arange(200) % 2)
    assert planned.expected_passes > 3
    assert 1.0 < planned.expected_seconds < 2.0
    assert all(kind.memory.items["cache of blocks"] > 0 for kind in planned.passes)


def test_a_plan_counts_what_the_driver_holds_beside_its_passes(dataset: Dataset) -> None:
    features = MarginFeatures(n_features=100, random_state=0)
    bare, searched = plan(RandomFeatures(n_features=100), dataset), plan(features, dataset)
    assert bare.held == {}
    assert bare.peak_bytes == max(one.memory.total for one in bare.passes)
    held = sum(searched.held.values())
    assert searched.peak_bytes == with_passes(searched.held, max(one.memory.total for one in searched.passes))
    assert "held beside them" in repr(searched)
    assert searched.facts["held"] == searched.held
    # a machine holds no more than its features' search, or its Hessians
    machine = KernelClassifier(features, solver="newton", loss="squared_hinge")
    assert sum(plan(machine, dataset).held.values()) >= held
    for other in (PeakFeatures(n_features=20), features.set_params(solver="game")):
        assert plan(other, dataset).held["searched rows"] > 0


def test_what_a_driver_holds_between_passes_is_not_there_beside_them(dataset: Dataset) -> None:
    judging, fit = {"Hessians": 10, BETWEEN_PASSES: 90}, {"features": 30, BETWEEN_PASSES: 20}
    held = largest_held([judging, fit])
    assert held == {"features": 30, BETWEEN_PASSES: 70}
    assert [with_passes(held, passes) for passes in (0, 70, 100)] == [100, 100, 130]
    planned = plan(KernelClassifier(RandomFeatures(n_features=300), solver="newton", loss="squared_hinge"), dataset)
    assert planned.peak_bytes == with_passes(planned.held, max(one.memory.total for one in planned.passes))
    assert planned.peak_bytes < sum(planned.held.values()) + max(one.memory.total for one in planned.passes)


def test_passes_and_what_the_driver_holds_beside_them_share_the_limit(dataset: Dataset) -> None:
    features = MarginFeatures(Gaussian(1.0), n_features=100, random_state=0)
    # the first plan loads what a fit needs
    needed = [plan(features, dataset) for _ in range(2)][-1]
    assert needed.room is not None
    # room for less than the blocks that a pass would take without a limit
    limit = needed.room.held + needed.peak_bytes - (1 << 20)
    limited = plan(features.set_params(memory_limit=limit), dataset)
    assert limited.room is not None
    assert limited.room.held + limited.peak_bytes <= limit


def test_what_a_search_allocates_is_within_its_plan(dataset: Dataset) -> None:
    features = MarginFeatures(n_features=60, search_rows=6_000, random_state=0, progress=False)
    planned = plan(features, dataset)
    features.fit(dataset)
    tracemalloc.start()
    with dask.config.set(scheduler="synchronous"):
        features.fit(dataset)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < planned.peak_bytes
    # without what is held the plan would fall short of the rows that are searched alone
    assert planned.held["searched rows"] >= 6_000 * 8 * 4


@pytest.mark.slow
def test_the_plan_of_few_rows_without_settings_holds_and_is_not_far_too_large() -> None:
    X = np.random.default_rng(0).normal(size=(1_000, 8)).astype(np.float32)
    y = (np.sin(3 * X[:, 0] + 2 * X[:, 1]) + np.sin(2 * X[:, 2]) > 0).astype(int)
    machine = KernelClassifier(effort="fast", random_state=0, progress=False)
    # one block is worked on at a time, whatever the cores: the plan of two is that of one
    with dask.config.set(num_workers=2):
        planned = plan(machine, X, y).peak_bytes
    machine.fit(X, y)
    tracemalloc.start()
    try:
        clone(machine).fit(X, y)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert measured <= planned <= 3 * measured + (300 << 20)
    # the usual effort may come to twice as many features as rows, whose Hessians count
    assert plan(machine.set_params(effort="balanced"), X, y).peak_bytes < 1 << 30


@pytest.mark.parametrize("n_features", [10**9, 10**12])
@pytest.mark.parametrize("act", [plan, lambda machine, X, y: machine.fit(X, y)], ids=["plan", "fit"])
def test_a_machine_of_more_features_than_memory_holds_is_refused_before_they_are_drawn(
    act: Any, n_features: int
) -> None:
    X = np.random.default_rng(0).normal(size=(400, 3))
    refusal = r"(256 mapped rows: [\d,]+ bytes|a linear model on these features).*iB"
    with pytest.raises(dkl.errors.MemoryLimitError, match=refusal):
        act(KernelClassifier("random", n_features=n_features, random_state=0), X, X[:, 0] > 0)


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize(
    ("features", "n_features"),
    [
        *(("auto", 10**12), ("nystrom", 10**5), ("aligned", 10**12), ("coordinates", 10**5)),
        *(("random", 10**12), ("steps", 10**12)),
    ],
)
def test_a_plan_refuses_the_features_that_a_fit_in_memory_refuses_and_no_others(features: str, n_features: int) -> None:
    """The number of features is a bound; landmarks, candidates and what an effort allows are never more than that."""
    X = np.random.default_rng(0).normal(size=(150, 3))
    few: Any = {
        "aligned": dkl.AlignedFeatures(n_candidates=100),
        "coordinates": dkl.AlignedFeatures(dkl.Coordinates(), n_candidates=None),
    }
    machine = KernelClassifier(few.get(features, features), n_features=n_features, effort="fast", random_state=0)
    if features in ("random", "steps"):
        for act in (plan, lambda *given: given[0].fit(*given[1:])):
            with pytest.raises(dkl.errors.MemoryLimitError, match=r"a linear model on these features.*iB"):
                act(machine, X, X[:, 0] > 0)
        return
    assert plan(machine, X, X[:, 0] > 0).n_passes > 0
    assert machine.fit(X, X[:, 0] > 0).feature_map_.n_features <= 200


def test_what_no_memory_holds_is_said_by_its_sum_and_never_drawn() -> None:
    """Of every learner, with a billion features, candidates or landmarks, alone and under a machine."""
    program = [sys.executable, "-m", "tests.plan_huge", str(6 << 30)]
    run = subprocess.run(program, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=True)
    found = json.loads(run.stdout)
    assert found["grown"] < 64 << 20
    for name, (error, message) in found["said"].items():
        assert error in ("MemoryLimitError", "MemoryError"), (name, error, message)
        assert "iB" in message, (name, message)


HUGE = 10**11
IN_MEMORY = [
    dkl.AlignedFeatures(n_candidates=HUGE),
    dkl.PosteriorFeatures(n_candidates=HUGE, n_features=10),
    dkl.LeverageFeatures(n_candidates=HUGE, n_features=10),
    dkl.JointFeatures(n_candidates=HUGE),
    dkl.LandmarkFeatures(n_landmarks=4, n_candidates=HUGE),
    dkl.TunedClassifier(n_features=HUGE, solver="adam"),
    dkl.PeakFeatures(n_features=HUGE),
    dkl.MarginFeatures(n_features=HUGE),
]


@pytest.mark.parametrize("learner", IN_MEMORY, ids=lambda learner: type(learner).__name__)
def test_a_fit_of_rows_in_memory_says_the_sum_before_it_draws(learner: Any) -> None:
    X = np.random.default_rng(0).normal(size=(60, 4))
    with pytest.raises(MemoryError, match=r"(frequencies|a linear model on these features).*iB"):
        learner.fit(X, X[:, 0] > 0.0)


def test_a_plan_takes_no_memory_for_the_matrices_of_landmarks_that_it_counts() -> None:
    rows = as_dataset(np.zeros((6_000, 2), np.float32), np.arange(6_000) % 2)
    # The C library takes the next arrays of up to 31 MiB from its own memory, and keeps more of it than a matrix takes:
    # below the last one, which stays, and without the pages, which the system has back.
    np.ones(31 << 17).sum()
    freed = [np.ones(15 << 17) for _ in range(25)]
    last = np.ones(10_000)
    freed.clear()
    give_back_memory()
    assert dkl.NystromFeatures(n_features=10).planned_map(rows).n_features == last[:10].sum()
    before = psutil.Process().memory_info().rss
    maps = [dkl.NystromFeatures(n_features=6_000).planned_map(rows) for _ in range(4)]
    assert all(one.n_features == 6_000 for one in maps)
    assert psutil.Process().memory_info().rss - before < 100 << 20  # of 1.1 GB


@pytest.mark.parametrize("act", [plan, lambda learner, X, y: learner.fit(X, y)], ids=["plan", "fit"])
@pytest.mark.parametrize("name", ["learner", "machine"])
def test_more_landmarks_than_memory_holds_the_matrices_of_are_refused_by_their_sum(name: str, act: Any) -> None:
    X = np.arange(400_000.0, dtype=np.float32).reshape(-1, 1)
    many: Any = dkl.NystromFeatures(n_features=len(X), random_state=0)
    with pytest.raises(dkl.errors.MemoryLimitError, match=r"400,000 landmarks: .*iB"):
        act(KernelClassifier(many, random_state=0) if name == "machine" else many, X, np.arange(len(X)) % 2)


def test_a_plan_of_the_shell_says_the_sum_of_a_billion_features(tmp_path: Path) -> None:
    create_dataset(tmp_path / "rows.zarr", np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2)
    for learner in ("random", "aligned", "posterior", "landmarks", "leverage", "peaks", "margin", "joint", "tuned"):
        options = ["plan", str(tmp_path / "rows.zarr"), "--learner", learner, "--features", str(10**10)]
        run = CliRunner().invoke(app, options)
        assert run.exit_code == 1, (learner, run.output)
        assert "iB" in run.stderr
        assert "Traceback" not in run.output


def test_more_features_side_by_side_than_the_log_loss_has_hessians_for_have_a_plan() -> None:
    X = np.random.default_rng(0).normal(size=(5_000, 20)).astype(np.float32)
    planned = plan(KernelClassifier(effort="best", progress=False), X, X[:, 0] > 0.0)
    assert planned.peak_bytes > 0


def made_rows(kind: str, n: int = 20_000, d: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose classes follow a line, cosines of projections, thresholds, or products of these."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((n, d)).astype(np.float32)
    if kind == "lines":
        score = X @ rng.standard_normal(d)
    elif kind == "waves":
        score = np.cos(X @ rng.standard_normal((d, 12)) * 0.7).sum(axis=1)
    elif kind == "thresholds":
        cuts = rng.standard_normal(d)
        score = (cuts < X) @ (2.0 * rng.standard_normal(d))
    else:
        score = sum((X[:, i] > 0.3) * (X[:, j] > -0.2) * sign for i, j, sign in ((0, 1, 3), (2, 3, -3), (4, 5, 2)))
    return X, (score + rng.logistic(size=n) > np.median(score)).astype(int)


@pytest.mark.parametrize("kind", ["lines", "waves", "thresholds", "products"])
def test_a_look_at_a_block_tells_lines_from_what_is_curved(kind: str) -> None:
    X, y = made_rows(kind)
    assert seems_linear(Block(0, X, y, None, np.arange(len(X))), 2) == (kind == "lines")


@pytest.mark.parametrize("kind", ["products", pytest.param("lines", marks=pytest.mark.slow)])
def test_a_look_at_many_columns_tells_lines_from_what_is_curved(kind: str) -> None:
    """The columns that matter are a few of 150, so that bins of the others have to make room for theirs."""
    X, y = made_rows(kind)
    further = np.random.default_rng(5).standard_normal((len(X), 150 - X.shape[1])).astype(np.float32)
    # the columns of the law are the last ones
    assert seems_linear(Block(0, np.hstack([further, X]), y, None, np.arange(len(X))), 2) == (kind == "lines")


def test_a_look_at_columns_of_mostly_one_value_says_nothing_of_its_bins(tmp_path: Path) -> None:
    """A warning would be an error here."""
    X, y = made_rows("lines", 2_000)
    X[::2, 1] = 0.0
    assert seems_linear(Block(0, X, y, None, np.arange(len(X))), 2)
    create_dataset(tmp_path / "rows.zarr", X, y)
    run = CliRunner().invoke(app, ["plan", str(tmp_path / "rows.zarr"), "--effort", "fast"])
    assert run.exit_code == 0, run.output
    assert "Warning" not in run.stderr
    # the shell says first what a plan in Python says first
    first = " ".join(run.stdout.split())
    assert re.match(r"about \d.* in this process \(at most .*\), .*iB, \d+ passes \(at most \d+\)", first)
    assert "the fit adds at most" in first


def test_a_plan_for_a_cluster_says_what_each_process_holds(dataset: Dataset, client: Any) -> None:
    planned = plan(MarginFeatures(n_features=100, random_state=0), dataset)
    assert planned.room is not None
    driver = max(sum(kind.held.values()) for kind in planned.passes)
    passes = max(kind.memory.total for kind in planned.passes)
    now, later = planned.room.held - planned.room.process.later, planned.room.process.later
    assert later > 0
    assert f"holds {format_bytes(now)} already, takes {format_bytes(later)} more for libraries" in planned.memory
    assert f"adds at most {format_bytes(passes)} to each, and {format_bytes(driver)} to your own process" in repr(
        planned
    )
    assert "held beside them, in your process" in repr(planned)
    assert planned.summary.split(", ")[1] == f"{format_bytes(planned.room.held + passes)} each"


def test_what_cannot_be_told_by_a_look_is_expected_to_be_curved() -> None:
    X, y = made_rows("lines", 2_000)
    block = Block(0, X, y, None, np.arange(len(X)))
    for other in (
        block.rows(np.arange(500)),
        replace(block, X=csr_array(block.X)),
        replace(block, y=np.zeros(block.n_rows, np.int64)),
        replace(block, X=np.full_like(block.X, np.nan)),
    ):
        assert not seems_linear(other, 2)


def test_a_plan_says_first_what_to_expect_and_what_is_the_most(dataset: Dataset) -> None:
    machine = KernelClassifier(AlignedFeatures(n_features=20, n_candidates=100), solver="newton")
    planned = plan(machine, dataset)
    first, *rest = repr(planned).splitlines()
    assert first == planned.summary
    assert first.startswith("about ")
    assert f"{planned.expected_passes} passes (at most {planned.n_passes})" in first
    assert "(at most " in first.split("in this process")[1]
    assert any("the fit adds at most" in line for line in rest)
    assert planned.expected_passes < planned.n_passes
    assert 0.0 < planned.expected_seconds < planned.seconds
    assert planned.facts["expected_seconds"] == planned.expected_seconds


def test_steps_are_expected_as_often_as_fits_need_them(dataset: Dataset) -> None:
    """And further ones where several classes have to settle."""
    seen: list[Any] = []
    machine = KernelClassifier(RandomFeatures(n_features=30), solver="newton", progress=seen.append, random_state=0)
    planned = plan(machine, dataset)
    machine.fit(dataset)
    made = sum(event.kind == "started" and event.name == "newton step" for event in seen)
    expected = sum(kind.expected_calls for kind in planned.passes if kind.name.startswith("newton step"))
    assert made / 2 <= expected <= 2 * made
    most = sum(kind.calls for kind in planned.passes if kind.name.startswith("newton step"))
    assert made < expected + 5 < most


def test_the_time_of_a_machine_without_settings_follows_from_effort_rows_and_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # plans are compared that a busy machine would measure at different speeds
    monkeypatch.setattr("dkl.planning.product_rate", lambda: 1e11)

    def expected(kind: str, n: int, **options: Any) -> Any:
        return plan(KernelClassifier(progress=False, **options), *made_rows(kind, n))

    # more rows than candidates are tried on, so that the last fit differs
    curved, lines = expected("waves", 40_000), expected("lines", 40_000)
    assert lines.expected_seconds < curved.expected_seconds < curved.seconds
    fast = expected("waves", 40_000, effort="fast")
    assert fast.expected_seconds < curved.expected_seconds / 3
    assert expected("waves", 40_000, time_limit=10.0, effort="best").expected_seconds == 10.0
    far = curved.at(10_000_000)
    assert far.expected_seconds > 10 * curved.expected_seconds
    assert curved.at(10_000_000, slots=64).expected_seconds < far.expected_seconds


def test_the_plan_of_long_work_names_a_cheaper_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkl.planning._LONG_S", 2.0)
    X, y = made_rows("waves", 5_000)
    planned = plan(KernelClassifier(), X, y)
    assert 'effort="fast" takes about' in planned.cheaper
    assert repr(planned).splitlines()[1].startswith("cheaper: ")
    assert plan(KernelClassifier(RandomFeatures(n_features=5)), X, y).cheaper == ""


def test_records_are_timed_on_few_rows_or_counted(dataset: Dataset) -> None:
    """Calls on some rows tell what all rows take; one that cannot be made is counted by its operations."""

    def slow(block: Any, operands: Any) -> dict[str, np.ndarray]:
        values = np.sqrt(np.arange(200.0 * block.n_rows))
        return {"sum": values.sum(keepdims=True)}

    def broken(block: Any, operands: Any) -> dict[str, np.ndarray]:
        raise IndexError("no such operand")

    block = dataset.source.reader().load(dataset.source.ticket(0))
    once = BlockSum("slow", slow, {"sum": Accumulator((1,))}, cost=_same_cost)
    few = TimedRows(block, 1_000, 8, 1e11).seconds(once)
    many = TimedRows(block, 1_000_000, 8, 1e11).seconds(once)
    assert few.shared > 1e-5
    assert many.shared / few.shared == pytest.approx(1_000, rel=0.8)
    counted = 1_000 * 7.0 / 1e11
    assert TimedRows(block, 1_000, 8, 1e11).seconds(replace(once, function=broken)) == Seconds(counted, 0.0, counted)


def _same_cost(rows: int, columns: int) -> Cost:
    return Cost(7.0 * rows)


def test_the_planned_records_of_most_learners_can_be_called(dataset: Dataset) -> None:
    """So that a plan times them: what it counts in their place is less near."""
    block = dataset.source.reader().load(dataset.source.ticket(0)).rows(np.arange(64))
    for learner in (*LEARNERS, MarginFeatures(n_features=20), PeakFeatures(n_features=5), "nystrom", "leverage"):
        machine = KernelClassifier(learner, solver="newton", loss="squared_hinge", alpha=1e-3)
        for records, _ in machine.planned_passes(dataset):
            for record in records:
                if isinstance(record, BlockSum):
                    record.function(replace(block, columns=dict.fromkeys(record.reads, np.zeros(64))), record.operands)


def test_forecast_is_plan_and_says_so(dataset: Dataset) -> None:
    with pytest.warns(FutureWarning, match="dkl.forecast is dkl.plan"):
        expected = dkl.forecast(LEARNERS[0], dataset, pilot_rows=100)
    assert expected.n_passes == plan(LEARNERS[0], dataset).n_passes


def test_more_rows_take_longer_and_further_slots_shorten_all_but_the_steps(dataset: Dataset) -> None:
    planned = plan(KernelClassifier(LEARNERS[0], epochs=3), dataset)
    many = planned.at(100 * dataset.n_rows)
    assert many.bytes_read == 100 * planned.bytes_read
    assert many.flops == pytest.approx(100 * planned.flops)
    assert many.expected_seconds > 20 * planned.expected_seconds - 20 * planned.driver_seconds
    shared = planned.at(100 * dataset.n_rows, slots=10 * planned.slots)
    steps = [kind for kind in shared.passes if kind.name.startswith("epoch")]
    assert steps
    assert all(kind.seconds >= kind.serial_seconds > 0.0 for kind in steps)
    assert shared.expected_seconds < many.expected_seconds


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("learner", ["random", "aligned", "posterior", "landmarks", "leverage", "margin", "nystrom"])
def test_fits_take_what_their_plans_expect(learner: str) -> None:
    """Of the median of three; within three, since other work on a machine disturbs both."""
    X, y = made_rows("waves", 100_000, 20)
    machine = KernelClassifier(learner, random_state=0, progress=False)
    expected, taken = plan(machine, X, y).expected_seconds, []
    for _ in range(3):
        started = time.perf_counter()
        machine.fit(X, y)
        taken.append(time.perf_counter() - started)
    assert np.median(taken) / 3 < expected < 3 * np.median(taken)


SEARCHED = "rows to search on"


def test_a_machine_has_room_for_what_may_win_though_other_features_take_longer() -> None:
    X = da.zeros((8_000_000, 28), chunks=(65_536, 28), dtype=np.float32)
    y = da.from_array(np.arange(len(X)) % 2, chunks=65_536)
    machine, rows = KernelClassifier(), as_dataset(X, y)
    of_all = MarginFeatures(n_features=400)
    sample = {record.k for records, _ in of_all.planned_passes(rows) for record in records if record.name == SEARCHED}
    kinds = planned_kinds(machine.replayed(rows), {})
    searches = [kind for kind in kinds for record in kind.records if record.name == SEARCHED and {record.k} == sample]
    # landmarks take longest; searched waves hold rows, and may win
    assert searches
    expected = max(kind.held.get("searched rows", 0) for kind in planned_kinds(of_all.replayed(rows), {}))
    assert max(kind.held["searched rows"] for kind in searches) == expected
    # they run in place of others, and add no time
    assert all(kind.calls == 0 for kind in searches)


def test_trials_on_all_rows_take_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample is one block, which further slots do not share; they do share the last fit to many rows."""
    monkeypatch.setattr("dkl.planning.product_rate", lambda: 1e11)
    machine = KernelClassifier()
    for n_rows, at_least, at_most in ((4_000, 0.99, 1.01), (1_000_000, 1 / 8, 1 / 6)):
        rows = as_dataset(
            da.zeros((n_rows, 5), chunks=(65_536, 5)), da.from_array(np.arange(n_rows) % 40, chunks=65_536)
        )
        alone, shared = (machine.usual_time(rows, None, slots=slots, flops_per_second=1e11) for slots in (1, 8))
        assert at_least < shared.seconds / alone.seconds < at_most


def test_a_read_that_is_held_up_does_not_set_the_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block in a hundred seconds would be counted once for each pass."""
    rows = np.random.default_rng(0).standard_normal((4_000, 20)).astype("f4")
    ds = create_dataset(tmp_path / "rows.zarr", rows, rows[:, 0] > 0, rows_a_block=500)
    reader = type(ds.source.reader())
    original, calls = reader.load, []

    def held_up(self: Any, *given: Any) -> Block:
        calls.append(given)
        if len(calls) == 1:
            time.sleep(0.5)
        return original(self, *given)

    monkeypatch.setattr(reader, "load", held_up)
    found = plan(RandomFeatures(n_features=10), ds)
    assert found.bytes_per_second > 10 * ds.source.stored_nbytes / 8 / 0.5
    # no more is read where a block takes long
    assert len(calls) == 2

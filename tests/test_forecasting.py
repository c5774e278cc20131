"""dkl.forecast: what a fit will take follows from what the passes of a fit to few rows took."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dask
import numba
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dkl
from dkl import forecasting
from dkl.data.dataset import Dataset
from dkl.forecasting import Forecast, PassCost, Rates, _some_blocks

NUMBERS = st.floats(1e-9, 1e3)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60_000, 8)).astype(np.float32)
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    return dkl.create_dataset(tmp_path_factory.mktemp("store") / "rows.zarr", X, y, rows_a_block=4_000)


def machine(**options: Any) -> Any:
    features = dkl.RandomFeatures(n_features=200, random_state=0, progress=False)
    chosen: Any = {"loss": "squared_error", "solver": "newton", "alpha": 1e-4, **options}
    return dkl.KernelClassifier(features, random_state=0, progress=False).set_params(**chosen)


def literally(forecast: Forecast, workers: int) -> tuple[float, float]:
    """Processor seconds of the workers and of the driver: pass by pass, and block by block what is read."""
    work = serial = 0.0
    widest = max(kind.bytes_a_row for kind in forecast.passes)
    begun = False
    for kind in forecast.passes:
        for _ in range(int(kind.calls)):
            is_whole = kind.bytes_a_row == widest
            read = kind.bytes_a_row * forecast.n_rows
            if is_whole and begun:
                read -= min(read, forecast.cache_bytes * workers)
            begun = begun or is_whole
            work += kind.seconds_a_row * forecast.n_rows + read / forecast.rates.bytes_per_second
            serial += forecast.rates.seconds_a_pass
            serial += sum(forecast.rates.seconds_a_task for _ in range(forecast.n_tasks))
    return work, serial + forecast.driver_seconds


@given(
    kinds=st.lists(st.tuples(st.integers(1, 4), NUMBERS, st.sampled_from([16.0, 64.0])), min_size=1, max_size=4),
    rates=st.tuples(NUMBERS, NUMBERS, NUMBERS),
    n_rows=st.integers(1, 10**6),
    cache=st.integers(0, 10**7),
    workers=st.integers(1, 300),
)
def test_the_seconds_are_the_sums_over_passes(
    kinds: list[Any], rates: Any, n_rows: int, cache: int, workers: int
) -> None:
    passes = tuple(PassCost(str(number), *kind) for number, kind in enumerate(kinds))
    forecast = Forecast("", n_rows, 1_000, passes, Rates(*rates), 0.5, cache)
    work, serial = literally(forecast, workers)
    assert forecast.work_seconds(workers) == pytest.approx(work)
    assert forecast.serial_seconds == pytest.approx(serial)
    assert forecast.processor_seconds == pytest.approx(sum(literally(forecast, 1)))
    # Of the tasks of a pass every worker gets one a round; the last round may leave some without.
    longest = max(len(range(worker, forecast.n_tasks, workers)) for worker in range(workers))
    assert forecast.elapsed_seconds(workers) == pytest.approx(work * longest / forecast.n_tasks + serial)
    assert forecast.core_hours(workers) == pytest.approx(forecast.elapsed_seconds(workers) * workers / 3600)


def test_a_fit_takes_what_was_forecast(dataset: Dataset) -> None:
    expected = dkl.forecast(machine(), dataset, pilot_rows=12_000)
    fits = []
    for _ in range(3):
        started = time.process_time()
        machine().fit(dataset)
        fits.append(time.process_time() - started)
    # Wide, since other work on a machine disturbs both; seven eighths of the rows were not in the pilot.
    assert min(fits) / 2 < expected.processor_seconds < 2 * max(fits)
    assert expected.at(10 * dataset.n_rows).processor_seconds > 6 * expected.processor_seconds


def test_the_time_of_the_compiler_is_not_forecast(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fit to many rows compiles kernels that few rows do without; the pilot is then made once more."""
    fits: list[int] = []
    fit = dkl.RandomFeatures.fit

    def compiles_once(learner: Any, *given: Any, **named: Any) -> Any:
        fits.append(given[0].n_rows)
        if fits.count(8_000) == 1 and fits[-1] == 8_000:
            numba.njit(lambda x: x + 1.0)(1.0)
        return fit(learner, *given, **named)

    monkeypatch.setattr(dkl.RandomFeatures, "fit", compiles_once)
    dkl.forecast(dkl.RandomFeatures(n_features=20, random_state=0), dataset, pilot_rows=1)
    assert fits == [2_000, 8_000, 8_000]


def test_a_fit_makes_and_reads_what_was_forecast(dataset: Dataset) -> None:
    seen: list[Any] = []
    fitted = machine()
    fitted.set_params(progress=seen.append, features__progress=seen.append)
    expected = dkl.forecast(fitted, dataset, pilot_rows=12_000)
    assert seen == []
    with dask.config.set(scheduler="synchronous"):
        fitted.fit(dataset)
    ended = [event for event in seen if event.kind == "finished" and event.name != "rounds"]
    assert {kind.name: kind.calls for kind in expected.passes} == {
        name: sum(event.name == name for event in ended) for name in dict.fromkeys(event.name for event in ended)
    }
    assert expected.bytes_read() == pytest.approx(sum(event.detail["bytes"] for event in ended), rel=0.01)


def test_more_epochs_of_few_rows_are_fewer_of_many(dataset: Dataset) -> None:
    """Stochastic steps go through few rows more often: the plan says how much, and the forecast follows it."""
    steps = machine(loss="hinge", solver="sgd", features__n_features=20)
    planned = sum(one.calls for one in dkl.plan(steps, dataset).passes if one.name.startswith("epoch"))
    expected = dkl.forecast(steps, dataset, pilot_rows=4_000)
    assert sum(kind.calls for kind in expected.passes if kind.name.startswith("epoch")) == pytest.approx(planned)


def test_a_pilot_is_of_whole_blocks_from_all_over_the_rows(dataset: Dataset) -> None:
    for least in (1, 9_000, 10**6):
        few = _some_blocks(dataset, least)
        kept = np.flatnonzero(few.source.block_rows)
        assert few.n_rows >= min(least, dataset.n_rows)
        assert {0, 14} <= set(kept)
        np.testing.assert_array_equal(few.source.block_rows[kept], dataset.source.block_rows[kept])
        np.testing.assert_array_equal(few.class_weights, np.bincount(few.y.compute()))
        assert few.total_weight == few.n_rows
        assert sorted(few.row_id.compute()) == sorted(
            number for block in kept for number in range(4_000 * block, 4_000 * block + 4_000)
        )


def test_a_forecast_neither_touches_the_learner_nor_keeps_a_checkpoint(dataset: Dataset, tmp_path: Path) -> None:
    planned = machine().set_params(checkpoint=str(tmp_path / "state"))
    before = repr(planned)
    text = repr(dkl.forecast(planned, dataset, pilot_rows=1))
    assert repr(planned) == before
    assert not list(tmp_path.iterdir())
    assert not hasattr(planned, "linear_")
    for part in ("newton step: ", "on 60,000 rows", "tasks a pass", "in all", "of the processor"):
        assert part in text


@pytest.mark.parametrize("learner", [dkl.AlignedFeatures, "aligned"], ids=["class", "name"])
def test_a_forecast_of_no_learner_says_what_one_is(learner: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a learner or machine of dkl, such as dkl.KernelClassifier\(\)"):
        dkl.forecast(learner, np.ones((9, 2)), np.arange(9))
    with pytest.raises(ValueError, match="pilot_rows is 0; expected at least 1"):
        dkl.forecast(machine(), np.ones((9, 2)), np.arange(9), pilot_rows=0)


def test_declared_categories_and_missing_targets_are_forecast_as_they_are_planned_and_fitted() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=4_000), "person": rng.integers(0, 500, 4_000)})
    y = frame["x"] + 0.001 * frame["person"]
    y[::10] = np.nan
    # two passes for sums of categories are before those of the machine
    features = dkl.RandomFeatures(n_features=20, random_state=0, progress=False)
    given: Any = {"categorical": ["person"], "drop_missing_target": True}
    learner = dkl.KernelRegressor(features, solver="newton", alpha=1e-3, random_state=0, progress=False, **given)
    with pytest.warns(UserWarning, match="400"):
        expected = dkl.forecast(learner, frame, y)
    assert expected.n_rows == 3_600
    assert any(one.name.startswith("sums of categories") for one in expected.passes)
    with pytest.warns(UserWarning, match="400"):
        planned = dkl.plan(learner, frame, y)
    names = {one.name.split(" + ")[0] for one in planned.passes}
    assert {one.name.split(" + ")[0] for one in expected.passes} <= names
    with pytest.raises(ValueError, match="missing"):
        dkl.forecast(learner.set_params(drop_missing_target=False), frame, y)


def test_the_driver_takes_longer_for_larger_samples(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search on a share of the rows: what the pilot's took, as often as the sample of all rows is larger."""
    searched = dkl.KernelClassifier(
        dkl.MarginFeatures(n_features=20, random_state=0, progress=False),
        loss="squared_hinge",
        solver="newton",
        alpha=1e-4,
        random_state=0,
        progress=False,
    )
    monkeypatch.setattr("dkl.methods.margin.rounds._FIRST_SAMPLE", 100)
    seen = []
    pilot = forecasting._pilot

    def noted(*given: Any) -> Any:
        seen.append(pilot(*given))
        return seen[-1]

    monkeypatch.setattr(forecasting, "_pilot", noted)
    expected = dkl.forecast(searched, dataset, pilot_rows=12_000)
    ((_, between),) = seen
    assert between["corrective round"] > 0.0
    # a twentieth of 60,000 rows and of the pilot's 12,000
    others = sum(between.values()) - between["corrective round"]
    assert expected.driver_seconds == pytest.approx(5.0 * between["corrective round"] + others)


@pytest.mark.parametrize("stored", [True, False])
def test_a_forecast_of_counts_knows_their_exposure(stored: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, years = rng.standard_normal((3_000, 3)), rng.integers(1, 5, 3_000).astype(float)
    y = rng.poisson(years * np.exp(X[:, 0])).astype(float)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    exposure: Any = years
    rows: Any = (X, y)
    if stored:
        exposure = "years"
        place = tmp_path / "rows.zarr"
        rows = (dkl.create_dataset(place, frame.assign(years=years), y, task="regression", rows_a_block=500),)
    counts = dkl.KernelRegressor(dkl.RandomFeatures(n_features=20, random_state=0), loss="poisson", alpha=1e-3)
    expected = dkl.forecast(counts, *rows, exposure=exposure, pilot_rows=1_000)
    assert [one.name for one in expected.passes].count("exposures") == stored
    assert (expected.passes[0].bytes_a_row > 0.0) == stored
    assert {one.name for one in expected.passes} - {"exposures"} == {
        one.name for one in dkl.forecast(counts, *rows, pilot_rows=1_000).passes
    }
    with pytest.raises(ValueError, match="names no column of X" if stored else "one number a row"):
        dkl.forecast(counts, *rows, exposure="months" if stored else years[1:])
    with pytest.raises(ValueError, match="loss='poisson' or loss='gamma'"):
        dkl.forecast(dkl.KernelRegressor(counts.features), *rows, exposure=exposure)

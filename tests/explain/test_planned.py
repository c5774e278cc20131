"""Plans of explanations: the pass that runs is the one that was planned, and stays below the memory it was given."""

from __future__ import annotations

import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

import dkl
from dkl.events import Event
from dkl.explain import Explanation, background_of, importance, partial_dependence

EXPLAINED: dict[str, Any] = {
    "importance": importance,
    "partial_dependence": partial(partial_dependence, columns=[0, (1, 2)], resolution=6),
    "contributions": background_of,
}


@pytest.mark.parametrize("kind", EXPLAINED)
@pytest.mark.parametrize(
    "features",
    [
        dkl.RandomFeatures(dkl.Gaussian(2.0), 40, random_state=0),
        dkl.RandomFeatures(dkl.ArcCosine(0), 40, random_state=0),
        dkl.RandomFeatures(dkl.Coordinates(), 40, random_state=0),
        dkl.StepFeatures(n_features=40, random_state=0),
        dkl.NystromFeatures(n_features=40, random_state=0),
    ],
    ids=["waves", "half-spaces", "linear", "steps", "nystrom"],
)
def test_what_is_planned_is_what_runs(features: Any, kind: Any, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(3_000, 12)).astype(np.float32)
    y = X[:, 0] > X[:, 1] * X[:, 2]
    model = dkl.KernelClassifier(features, loss="squared_hinge", solver="newton", progress=False).fit(X[:500], y[:500])
    ds = dkl.create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=1_000)
    events: list[Event] = []
    explain = EXPLAINED[kind]
    with dask.config.set(scheduler="synchronous"):
        # what a process loads for its first pass over a store is none of the pass
        explain(model, dkl.create_dataset(tmp_path / "others.zarr", X[:500], y[:500]))
        found = dkl.plan(Explanation(model, kind, columns=[0, (1, 2)]), ds)
        tracemalloc.start()
        explain(model, ds, progress=events.append)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    (one,), finished = found.passes, [event.detail for event in events if event.kind == "finished"]
    assert [detail["projected_bytes"] for detail in finished] == [one.memory.total]
    assert peak < found.peak_bytes
    assert repr(found).splitlines()[1].startswith(f"for {kind} of KernelClassifier")


def test_a_limit_that_cannot_be_kept_and_bad_input_are_clear_errors() -> None:
    X = np.random.default_rng(0).normal(size=(300, 5))
    model = dkl.KernelRegressor(dkl.RandomFeatures(n_features=20), solver="newton", progress=False).fit(X, X[:, 0])
    with pytest.raises(dkl.errors.MemoryLimitError, match="the pass 'slopes'"):
        dkl.plan(Explanation(model, "importance", memory_limit="1 kB"), X)
    with pytest.raises(ValueError, match="kind is 'shap'; expected 'importance'"):
        Explanation(model, "shap")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="X has 4 features"):
        dkl.plan(Explanation(model, "contributions"), X[:, :4])
    with pytest.raises(TypeError, match="predicts nothing"):
        dkl.plan(Explanation(model.features_, "importance"), X)

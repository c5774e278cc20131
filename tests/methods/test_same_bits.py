"""A learner has the same bits on threads, on worker processes, and with any number of them."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
import pytest
from sklearn.base import clone

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.posterior.learner import PosteriorFeatures

LEARNERS = [
    AlignedFeatures(n_candidates=300, n_features=60, scaling="standard", random_state=0, progress=False),
    PosteriorFeatures(n_candidates=300, n_features=60, scaling="quantile", random_state=0, progress=False),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Weighted rows of three classes in a store of many blocks."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 12)).astype(np.float32)
    y = np.array(["a", "b", "c"])[(X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 1)]
    folder = tmp_path_factory.mktemp("store")
    return create_dataset(str(folder / "rows.zarr"), X, y, sample_weight=rng.integers(0, 3, 20_000), rows_a_block=512)


def bits_of(learner: Any) -> list[bytes]:
    values = learner.alignment_ if hasattr(learner, "alignment_") else learner.losses_
    arrays = [values, learner.weights_, learner.frequencies_, learner.feature_map_.amplitudes, learner.scaler_.scale]
    return [array.tobytes() for array in arrays]


@pytest.fixture(scope="module", params=LEARNERS, ids=lambda learner: type(learner).__name__)
def on_one_thread(request: pytest.FixtureRequest, dataset: Dataset) -> Any:
    with dask.config.set(scheduler="synchronous"):
        return clone(request.param).fit(dataset)


@pytest.mark.parametrize("n_threads", [2, 5])
def test_threads_give_the_bits_of_one(on_one_thread: Any, dataset: Dataset, n_threads: int) -> None:
    assert dataset.source.n_blocks > 20
    with dask.config.set(num_workers=n_threads):
        assert bits_of(clone(on_one_thread).fit(dataset)) == bits_of(on_one_thread)


def test_two_worker_processes_give_the_bits_of_one_thread(on_one_thread: Any, dataset: Dataset, client: Any) -> None:
    fitted = clone(on_one_thread).fit(dataset)
    assert bits_of(fitted) == bits_of(on_one_thread)
    mapped = fitted.transform(dataset)
    on_workers = mapped[:2_000].compute()
    with dask.config.set(scheduler="synchronous"):
        np.testing.assert_array_equal(mapped[:2_000].compute(), on_workers)

"""Every path works on rows with one BLAS thread: beside another busy process, more of them wait for each other."""

from __future__ import annotations

import contextlib
import dis
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier
from threadpoolctl import threadpool_info, threadpool_limits

import dkl
from dkl.explain import contributions, effects, importance, partial_dependence
from dkl.export.predictor import Forms
from dkl.kernels import threads
from dkl.kernels.products import DenseForm
from dkl.linear import scores
from dkl.linear.incremental import BlockIncremental
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor

SOME_THREADS = 3


def blas_threads() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture(scope="module")
def rows() -> Any:
    X = np.random.default_rng(0).normal(size=(300, 40)).astype(np.float32)
    return X, X[:, 0] * X[:, 1] > 0


@pytest.fixture(scope="module")
def model(rows: Any) -> KernelClassifier:
    features = dkl.RandomFeatures(n_features=256, random_state=0)
    return KernelClassifier(features, loss="log_loss", random_state=0).fit(*rows)


@pytest.fixture(scope="module")
def regressor(rows: Any) -> KernelRegressor:
    features = dkl.RandomFeatures(n_features=64, random_state=0)
    return KernelRegressor(features, random_state=0).fit(rows[0], rows[0][:, 0])


@pytest.fixture(scope="module")
def store(rows: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return dkl.create_dataset(tmp_path_factory.mktemp("blas") / "rows.zarr", *rows, rows_a_block=100)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The BLAS threads that there were at a product; there are some around the test, and the same ones after it."""
    found: set[int] = set()

    def spied(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            found.update(blas_threads())
            return function(*args, **named)

        return call

    monkeypatch.setattr(DenseForm, "__call__", spied(DenseForm.__call__))
    monkeypatch.setattr(scores, "_whole_tile", spied(scores._whole_tile))
    monkeypatch.setattr(Forms, "_features", spied(Forms._features))
    with threadpool_limits(SOME_THREADS, user_api="blas"):
        yield found
        assert blas_threads() == {SOME_THREADS}
    assert found == {1}


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
@pytest.mark.parametrize("kind", ["store", "dask", "memory"])
def test_predictions(method: str, kind: str, model: Any, rows: Any, store: Any, seen: set[int]) -> None:
    given = {"store": store, "dask": da.from_array(rows[0], chunks=(70, 40)), "memory": rows[0]}[kind]
    np.asarray(getattr(model, method)(given))


@pytest.mark.parametrize("kind", ["store", "dask", "memory"])
def test_features(kind: str, model: Any, rows: Any, store: Any, seen: set[int]) -> None:
    given = {"store": store, "dask": da.from_array(rows[0], chunks=(70, 40)), "memory": rows[0]}[kind]
    np.asarray(model.features_.transform(given))


def test_scores(model: Any, regressor: Any, rows: Any, store: Any, seen: set[int]) -> None:
    model.score(store)
    lazy = da.from_array(rows[0], chunks=(70, 40))
    regressor.score(lazy, lazy[:, 0])
    regressor.predict(lazy).compute()


@pytest.mark.parametrize("method", ["predict", "predict_proba", "transform"])
def test_estimators_of_ours_in_the_wrapper_of_dask_ml(method: str, model: Any, rows: Any, seen: set[int]) -> None:
    from dask_ml.wrappers import ParallelPostFit

    wrapped = ParallelPostFit(model.features_ if method == "transform" else model)
    getattr(wrapped, method)(da.from_array(rows[0], chunks=(70, 40))).compute()


def test_estimators_of_others_on_our_blocks(model: Any, rows: Any, seen: set[int]) -> None:
    lazy, labels = da.from_array(rows[0], chunks=(70, 40)), da.from_array(rows[1], chunks=70)
    ours = BlockIncremental(SGDClassifier(random_state=0), feature_map=model.features_.feature_map_, random_state=0)
    ours.fit(lazy, labels)
    ours.predict(lazy).compute()
    ours.decision_function(lazy).compute()


@pytest.mark.parametrize("solver", ["newton", "sgd"])
def test_fits_and_their_calibration(solver: str, rows: Any, store: Any, seen: set[int]) -> None:
    features = dkl.RandomFeatures(n_features=32, random_state=0)
    KernelClassifier(features, loss="squared_hinge", solver=solver, calibrate=True, random_state=0).fit(store)
    dkl.AlignedFeatures(n_candidates=40, n_features=16, random_state=0).fit(store)


def test_explanations(model: Any, rows: Any, seen: set[int]) -> None:
    importance(model, rows[0])
    importance(model, rows[0], measure="replacement")
    partial_dependence(model, rows[0], [0, (0, 1)], resolution=3)
    contributions(model, rows[0][:3], rows[0][:50])
    effects(model, rows[0][:50])


@pytest.mark.parametrize("n_rows", [None, 3, 200])
def test_the_predictor_of_single_rows_and_of_many(n_rows: int | None, model: Any, rows: Any, seen: set[int]) -> None:
    found = model.predictor().predict_proba(rows[0][0] if n_rows is None else rows[0][:n_rows])
    assert found.shape[-1] == 2


def test_a_library_that_is_loaded_meanwhile_is_held_to_one_thread_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def __init__(self) -> None:
            self.num_threads = 4

        def set_num_threads(self, number: int) -> None:
            self.num_threads = number

    first, later = Library(), Library()
    loaded: list[Any] = [first]
    monkeypatch.setattr(threads, "_loaded_libraries", lambda: loaded)
    with threads.one_blas_thread():
        loaded.append(later)

        def task() -> None:
            with threads.one_blas_thread():
                assert [first.num_threads, later.num_threads] == [1, 1]

        import threading

        thread = threading.Thread(target=task)
        thread.start()
        thread.join()
        assert later.num_threads == 1
    assert [first.num_threads, later.num_threads] == [4, 4]


def nested() -> None:
    with threads.one_blas_thread(), threads.one_blas_thread():
        pass


def libraries_found_anew() -> None:
    threads._modules_seen = 0
    nested()


def shared() -> None:
    threads.Crew().map(abs, range(4))


@pytest.mark.parametrize("work", [nested, libraries_found_anew, shared])
def test_an_interrupt_at_any_moment_leaves_blas_its_threads(
    work: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python looks at signals where a function begins, a call returns and a loop goes round: at each in turn here."""
    monkeypatch.setattr(threads, "usable_cores", lambda: 3)
    files = {threads.__file__, contextlib.__file__}
    seen, moment, struck = 0, 0, True
    last: dict[FrameType, str] = {}

    def strike(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal seen, struck
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        looks = last.get(frame, "").startswith(("CALL", "RESUME", "JUMP_BACKWARD"))
        if event == "call" or (event == "opcode" and looks):
            seen += 1
            if seen > moment:
                struck = True
                raise KeyboardInterrupt
        if event == "opcode":
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
        return strike

    with threadpool_limits(SOME_THREADS, user_api="blas"):
        while struck:
            seen, struck, before = 0, False, sys.gettrace()
            with contextlib.suppress(KeyboardInterrupt):
                sys.settrace(strike)
                try:
                    work()
                finally:
                    sys.settrace(before)
            last.clear()
            # helpers that had begun end by themselves
            until = time.monotonic() + 5.0
            while threads.threads_at_work() and time.monotonic() < until:
                time.sleep(1e-4)
            assert blas_threads() == {SOME_THREADS}, moment
            moment += 1
    assert moment > 50

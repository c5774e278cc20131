"""Where a pass computes: the workers of a cluster are asked; a GPU that one lacks is said to be missing there."""

from __future__ import annotations

import time
from typing import Any

import dask
import numpy as np
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.kernels import device as block_device
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.density.learner import TunedClassifier
from dkl.methods.random_features import RandomFeatures
from dkl.passes import devices
from dkl.passes.devices import choose_device, computing_device, driving_device
from dkl.protocols.block import Block
from dkl.registry import learner_classes

NONE = "CuPy finds no GPU"


def answering(monkeypatch: pytest.MonkeyPatch, *answers: str | None, silent: tuple[str, ...] = ()) -> None:
    """A cluster whose workers answer so."""
    monkeypatch.setattr(devices, "current_client", lambda: object())
    found = {f"tcp://{i}": one for i, one in enumerate(answers)}
    monkeypatch.setattr(devices, "_answers", lambda client: (found, list(silent)))


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        ((None, None), {"auto": "gpu", "gpu": "gpu", "mixed": "gpu", "cpu": "cpu"}),
        ((None, NONE), {"auto": "cpu", "mixed": "mixed", "cpu": "cpu"}),
        ((NONE, NONE), {"auto": "cpu", "mixed": "cpu", "cpu": "cpu"}),
        ((), {"auto": "cpu", "gpu": "gpu", "mixed": "cpu"}),
    ],
)
def test_a_gpu_is_taken_if_every_worker_has_one(
    answers: tuple[str | None, ...], chosen: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, *answers)
    assert {name: computing_device(name) for name in chosen} == chosen


def test_silent_workers_are_said_to_be_so_in_the_log_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answering(monkeypatch, None, silent=("tcp://cold",))
    with dask.config.set({"dkl.device-timeout": 7}), caplog.at_level("INFO", "dkl"):
        chosen = choose_device("auto")
        assert (chosen.device, choose_device("mixed").device, choose_device("gpu").device) == ("cpu", "mixed", "gpu")
    said = "of 2 workers 1 cannot use a GPU or are silent: tcp://cold did not answer within 7 s"
    assert said in chosen.why
    assert f"blocks are computed on the cpu: device='auto', and {said}" in caplog.text


@pytest.mark.skipif(block_device.why_no_gpu() is None, reason="there is a GPU")
def test_workers_are_waited_for_as_long_as_their_first_import_of_cupy_takes(
    client: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(devices, "_known", {})
    monkeypatch.setattr(devices, "look_for_gpu", slow_import)
    with dask.config.set({"dkl.device-timeout": 0.2}):
        assert len(devices._answers(client)[1]) == 2
    assert "2 workers did not say within 0.2 s" in caplog.text
    assert devices._answers(client) == (dict.fromkeys(sorted(client.nthreads()), NONE), [])


def slow_import() -> str:
    time.sleep(1.0)
    return NONE


def test_the_plan_and_the_report_say_where_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "why_no_gpu", lambda: NONE)
    monkeypatch.setattr(block_device, "why_no_gpu", lambda: NONE)
    X = np.random.default_rng(0).normal(size=(40, 3))
    learner = KernelClassifier(RandomFeatures(n_features=4, random_state=0), device="auto", random_state=0)
    said = "cpu: device='auto', and CuPy finds no GPU"
    planned = dkl.plan(learner, X, X[:, 0] > 0)
    assert f"computed on the {said}" in repr(planned)
    assert planned.facts["device"] == said
    assert dkl.report(learner.fit(X, X[:, 0] > 0)).facts["work"]["computed on"] == said
    assert NONE in dkl.plan(learner.set_params(device="gpu"), X, X[:, 0] > 0).device


def test_no_word_is_said_of_gpus_where_none_was_asked_for_or_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(block_device, "_is_installed", lambda *given: False)
    monkeypatch.setattr(block_device, "_sees_gpu", lambda: False)
    X = np.random.default_rng(0).normal(size=(40, 3))
    learner = RandomFeatures(n_features=4, random_state=0)
    assert "computed on" not in repr(dkl.plan(learner, X))
    assert str(choose_device("auto")) == str(choose_device("cpu")) == "cpu"
    assert "CuPy is not installed" in choose_device("mixed").why
    with monkeypatch.context() as patched:
        answering(patched, block_device.NO_CUPY, block_device.NO_CUPY)
        assert str(choose_device("auto")) == "cpu"
        assert "CuPy is not installed" in choose_device("mixed").why
    monkeypatch.setattr(block_device, "_sees_gpu", lambda: True)
    assert "a GPU is seen, but CuPy is not installed" in repr(dkl.plan(learner, X))


def test_a_forced_gpu_that_a_worker_lacks_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, None, NONE)
    message = r"device='gpu', but 1 of 2 workers cannot use one: on tcp://1 CuPy finds no GPU; use device='mixed'"
    with pytest.raises(RuntimeError, match=message):
        computing_device("gpu")


def test_an_unknown_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, None)
    with pytest.raises(ValueError, match="device is 'tpu'; it must be 'auto', 'cpu', 'gpu' or 'mixed'"):
        computing_device("tpu")


def test_the_driver_of_a_cluster_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_device, "why_no_gpu", lambda: NONE)
    answering(monkeypatch, None)
    assert driving_device("gpu") == "cpu"
    monkeypatch.setattr(devices, "current_client", lambda: None)
    with pytest.raises(RuntimeError, match="device='gpu', but CuPy finds no GPU; use device='auto' or 'cpu'"):
        driving_device("gpu")


def test_a_worker_places_blocks_on_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    block = Block(0, np.ones((2, 3)), None, None, np.arange(2))
    monkeypatch.setattr(block_device, "why_no_gpu", lambda: NONE)
    assert block_device.place(block, "mixed") is block
    with pytest.raises(RuntimeError, match="device='gpu', but CuPy finds no GPU"):
        block_device.place(block, "gpu")
    monkeypatch.setattr(block_device, "why_no_gpu", lambda: None)
    monkeypatch.setattr(block_device, "rows_on", lambda X, where: (X, where))
    assert block_device.place(block, "mixed").X[1] == "gpu"


@pytest.mark.parametrize("name", [*learner_classes(), "tuned", "machine"])
def test_a_forced_gpu_that_is_missing_is_said_before_rows_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_device, "why_no_gpu", lambda: NONE)
    special: dict[str, Any] = {"tuned": TunedClassifier, "machine": KernelClassifier}
    learner = {**learner_classes(), **special}[name](device="gpu")
    with pytest.raises(RuntimeError, match="device='gpu', but CuPy finds no GPU; use device='auto' or 'cpu'"):
        learner.fit("rows that nobody looks at", None)


@pytest.mark.skipif(block_device.why_no_gpu() is None, reason="there is a GPU")
def test_the_workers_of_a_cluster_answer_once(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(40, 3))
    monkeypatch.setattr(devices, "_known", {})
    assert computing_device("auto") == computing_device("mixed") == "cpu"
    monkeypatch.setattr(client, "submit", None)
    assert computing_device("auto") == "cpu"
    with pytest.raises(RuntimeError, match="2 of 2 workers cannot use one: on tcp://"):
        RandomFeatures(n_features=4, device="gpu", scaling="standard").fit(as_dataset(X, None, None))

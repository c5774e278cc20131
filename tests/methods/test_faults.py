"""A worker that is killed in the middle of a fit changes no bit: of potentials, weights, features and model."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

import dkl
from dkl.events import Event


class Killer:
    """Kills one worker process the first time that `stretch` has come `share` of its way."""

    def __init__(self, client: object, stretch: str, share: float) -> None:
        self.client, self.stretch, self.share = client, stretch, share
        self.killed: list[str] = []

    def __deepcopy__(self, memo: object) -> Killer:
        return self  # estimators are cloned with their parameters, and a client cannot be

    def __call__(self, event: Event) -> None:
        if self.killed or event.kind != "advanced" or self.stretch not in event.name:
            return
        if event.done < self.share * event.total:
            return
        processes = self.client.run(os.getpid)  # type: ignore[attr-defined]
        os.kill(sorted(processes.values())[0], signal.SIGKILL)
        self.killed.append(event.name)


def machine(progress: object = False) -> dkl.KernelClassifier:
    features = dkl.AlignedFeatures(
        n_candidates=400, n_features=60, scaling="standard", random_state=0, progress=progress
    )
    return dkl.KernelClassifier(features=features, epochs=3, random_state=0, progress=progress)


def learned(model: dkl.KernelClassifier) -> dict[str, np.ndarray]:
    return {
        "potentials": model.features_.alignment_,
        "weights": model.features_.weights_,
        "frequencies": model.features_.frequencies_,
        "amplitudes": model.features_.feature_map_.amplitudes,
        "coefficients": model.linear_.coef_,
        "intercept": model.linear_.intercept_,
    }


@pytest.mark.slow
@pytest.mark.parametrize("stretch", ["potentials", "epoch 2"])
def test_a_worker_killed_in_the_middle_of_a_fit_changes_no_bit(tmp_path: Path, mortal: object, stretch: str) -> None:
    generator = np.random.default_rng(0)
    X = generator.standard_normal((6_000, 8)).astype(np.float32)
    labels = (np.cos(X[:, 0] * 2) + X[:, 1] > 0).astype(int)
    data = dkl.create_dataset(str(tmp_path / "rows.zarr"), X, labels, rows_a_block=250)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dkl.passes.backends.current_client", lambda: None)
        undisturbed = learned(machine().fit(data))
    killer = Killer(mortal, stretch, 0.3)
    disturbed = learned(machine(killer).fit(data))
    assert killer.killed, f"no stretch of work was called {stretch!r}"
    for name, value in undisturbed.items():
        np.testing.assert_array_equal(disturbed[name], value, err_msg=name)

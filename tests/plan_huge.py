"""Plans what no machine holds, in a process of its own whose memory is bounded, and prints what each attempt says."""

from __future__ import annotations

import json
import resource
import sys

import numpy as np

import dkl
from dkl.passes.memory import peak_bytes

HUGE = 10**9
LEARNERS = {
    "random": lambda: dkl.RandomFeatures(n_features=HUGE),
    "random, structured": lambda: dkl.RandomFeatures(dkl.Gaussian(sampling="structured"), n_features=100 * HUGE),
    "random, orthogonal": lambda: dkl.RandomFeatures(dkl.Gaussian(sampling="orthogonal"), n_features=HUGE),
    "aligned": lambda: dkl.AlignedFeatures(n_candidates=20 * HUGE, n_features=HUGE),
    "aligned, few kept": lambda: dkl.AlignedFeatures(n_candidates=HUGE, n_features=10),
    "posterior": lambda: dkl.PosteriorFeatures(n_candidates=HUGE, n_features=10),
    "landmarks": lambda: dkl.LandmarkFeatures(n_landmarks=HUGE),
    "landmarks, candidates": lambda: dkl.LandmarkFeatures(n_landmarks=10, n_candidates=HUGE),
    "landmarks, shared": lambda: dkl.LandmarkFeatures(n_landmarks=HUGE, pool="shared"),
    "leverage": lambda: dkl.LeverageFeatures(n_candidates=HUGE, n_features=10),
    "peaks": lambda: dkl.PeakFeatures(n_features=HUGE),
    "margin": lambda: dkl.MarginFeatures(n_features=HUGE),
    "game": lambda: dkl.MarginFeatures(n_features=HUGE, solver="game"),
    "joint": lambda: dkl.JointFeatures(n_candidates=HUGE),
    "tuned": lambda: dkl.TunedClassifier(n_features=HUGE),
    "steps": lambda: dkl.StepFeatures(n_features=HUGE),
    "tuned, adam": lambda: dkl.TunedClassifier(n_features=HUGE, solver="adam"),
}


def main() -> None:
    X = np.random.default_rng(0).normal(size=(200, 40))
    y = (X[:, 0] > 0).astype(int)
    dkl.plan(dkl.KernelClassifier(dkl.RandomFeatures(n_features=10)), X, y)
    before = peak_bytes()
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), resource.RLIM_INFINITY))
    said = {}
    for name, make in LEARNERS.items():
        for machine in (False,) if name.startswith("tuned") else (False, True):
            attempt = dkl.KernelClassifier(make()) if machine else make()
            try:
                said[f"{name}, machine" if machine else name] = ["", str(dkl.plan(attempt, X, y).peak_bytes)]
            except Exception as error:
                said[f"{name}, machine" if machine else name] = [type(error).__name__, str(error)]
    sys.stdout.write(json.dumps({"grown": peak_bytes() - before, "said": said}))


if __name__ == "__main__":
    main()

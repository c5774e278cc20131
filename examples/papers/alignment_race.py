"""All learners on one set with one head: errors by the number of columns, and the seconds until an error is reached."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from alignment_figures import Part
from alignment_sets import OURS, PLAIN, Study
from cells import markdown
from sets import Rows

import dkl
from dkl.plots import ComparisonDisplay

TARGETS = (15.5, 15.0)
RACERS = {
    PLAIN: dkl.RandomFeatures,
    OURS: dkl.AlignedFeatures,
    "posterior": dkl.PosteriorFeatures,
    "joint": dkl.JointFeatures,
    "margin": dkl.MarginFeatures,
}


def racer(arm: str, n_features: int, seed: int, rows: Rows) -> Any:
    """Defaults but for the number of columns; the head is a squared hinge by Newton steps, its penalty chosen."""
    features = RACERS[arm](n_features=n_features)
    return dkl.KernelClassifier(
        features, loss="squared_hinge", solver="newton", alpha="auto", random_state=seed, progress=False
    )


def race(study: Study) -> Part:
    """The table, and race.png."""
    errors, seconds = fill(study)
    scores = {study.race: {arm: list(values) for arm, values in errors.items()}}
    display = ComparisonDisplay(study.race_sizes, scores, measure="test error, percent", baseline=PLAIN)
    reached = {arm: [seconds_to(target, errors[arm], seconds[arm]) for target in TARGETS] for arm in RACERS}
    lines = [
        [
            arm,
            *(f"{value:.2f}" for value in errors[arm]),
            *(f"{took:.1f}" if took else "never" for took in reached[arm]),
        ]
        for arm in RACERS
    ]
    heads = [study.race, *(f"{size:,}" for size in study.race_sizes), *(f"s to {target} %" for target in TARGETS)]
    text = (
        f"## Race: test error in percent by columns, seconds to an error\n\n{markdown(heads, lines)}\n\n"
        f"{ratio(reached[PLAIN][0], reached[OURS][0])}; the paper's ratio, between the best errors of each, is 12.\n"
    )
    return text, [partial(display.save, study.output / "race.png")]


def fill(study: Study) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Test errors and seconds of each learner by size, means over seeds."""
    name = f"{study.race}, race, {{}}, D = {{}}"
    study.cells.fill(
        {
            f"{name.format(arm, size)}, seed {seed}": study.fit(study.race, partial(racer, arm, size, seed))
            for size in study.race_sizes
            for arm in RACERS
            for seed in range(study.seeds)
        }
    )
    return tuple(  # type: ignore[return-value]
        {arm: np.array([study.mean(name.format(arm, size), of) for size in study.race_sizes]) for arm in RACERS}
        for of in ("test", "seconds")
    )


def seconds_to(target: float, errors: np.ndarray, seconds: np.ndarray) -> float | None:
    """The least of those sizes that reach an error."""
    reached = seconds[errors <= target]
    return float(reached.min()) if len(reached) else None


def ratio(plain: float | None, ours: float | None) -> str:
    if plain is None or ours is None:
        return f"Plain or aligned features do not reach {TARGETS[0]} %"
    return f"To {TARGETS[0]} % plain features take {plain / ours:.2g} times the seconds of aligned ones"

"""Which features a machine without settings takes: kinds of them judged by the same linear model on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import Coordinates, Gaussian, Matern
from dkl.linear.penalty_choice import PenaltyChoice, agreed
from dkl.machines.suggest import Advice
from dkl.methods.base import FeatureLearner
from dkl.registry import learner_entry

# The kinds are learned from a sample of at most so many rows, and judged on this share of it that they do not see; of
# few rows on five such shares in turn. The features themselves are then learned from all rows.
JUDGED_ROWS, JUDGING_SHARE = 20_000, 0.2
# Below so many rows no share of them could tell kinds of features apart.
FEWEST_ROWS = 60
# Kernels at landmarks lose their meaning in many columns, and histograms of all columns take memory and time.
_MOST_COLUMNS_OF_A_KERNEL, _MOST_COLUMNS_OF_STEPS = 500, 2_000
_LANDMARKS, _LANDMARK_BANDWIDTH = 1_000, 0.5


@dataclass(frozen=True)
class Contender:
    """A kind of features that may suit the rows.

    Parameters
    ----------
    name : str
        As a person calls it.
    learner : FeatureLearner
        Not fitted.
    """

    name: str
    learner: FeatureLearner


def contenders(dataset: Dataset, advice: Advice) -> list[Contender]:
    """What is tried on these rows, the plainest first.

    Parameters
    ----------
    dataset : Dataset
    advice : Advice
        Has the searched waves of the scaling and the bandwidth that suit the rows.
    """
    scaling = getattr(advice.features, "scaling", None)
    columns = learner_entry("aligned").learner_class(
        # a ball of radius 0 weighs all columns alike, so that each is there once
        Coordinates(),
        n_candidates=None,
        n_features=None,
        rho=0.0,
        scaling=scaling,
    )
    tried = [Contender("the columns themselves", columns)]
    if not isinstance(advice.features, type(columns)):
        drawn = learner_entry("random").learner_class(
            advice.features.family, n_features=advice.features.n_features, scaling=scaling
        )
        tried += [Contender("random waves", drawn), Contender("searched waves", advice.features)]
    else:
        tried.append(Contender("columns that agree with the target", advice.features))
    if dataset.source.is_sparse:
        return tried
    if dataset.n_columns <= _MOST_COLUMNS_OF_STEPS:
        tried.append(Contender("steps of columns and their products", learner_entry("steps").learner_class()))
    if dataset.n_columns <= _MOST_COLUMNS_OF_A_KERNEL:
        # as many landmarks as a machine of so many rows can use
        size = int(np.clip(dataset.n_rows // 2, 10, _LANDMARKS))
        kernel = learner_entry("nystrom").learner_class(
            Matern(0.5), n_features=size, sigma_factor=_LANDMARK_BANDWIDTH, scaling=scaling or "standard"
        )
        tried.append(Contender("a Matern kernel at landmarks", kernel))
    return tried


def usual_advice() -> Advice:
    """What plans go by before any row is read: the largest searched waves that are suggested, scaled."""
    waves = learner_entry("margin").learner_class(Gaussian(), n_features=1_000, scaling="standard")
    return Advice(waves, {}, ())


def winner(choices: Sequence[Sequence[PenaltyChoice] | None]) -> int:
    """The contender whose models do best on the held-out rows, at the best penalty of each; None is one that failed.

    Raises
    ------
    ValueError
        If all failed.
    """
    scores = [-np.inf if judged is None else float(agreed(judged).scores.max()) for judged in choices]
    if not np.isfinite(max(scores)):
        raise ValueError("no kind of features could be fitted to these rows; give `features`, to see why it fails")
    return int(np.argmax(scores))


def contest_reasons(
    tried: Sequence[Contender], choices: Sequence[Sequence[PenaltyChoice] | None], won: int, judged_rows: int
) -> tuple[str, ...]:
    """In plain sentences: what was chosen, and how much worse the others were."""

    def score(at: int) -> str:
        judged = choices[at]
        return "failed" if judged is None else f"{agreed(judged).scores.max():.4f}"

    others = ", ".join(f"{contender.name} {score(at)}" for at, contender in enumerate(tried) if at != won)
    return (
        f"Features: {tried[won].name}, which have the best score on held-out rows, {score(won)}; also tried: {others} "
        f"(1 less the mean loss of the same linear model, on {judged_rows:,} rows).",
    )

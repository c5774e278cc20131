"""Fully corrective rounds as a solver of `MarginFeatures`: makes the problem, and the fitted attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.feature_map import shares_of_lengths
from dkl.linear.minibatches import HeldOut
from dkl.linear.refinement_driver import is_refinable
from dkl.linear.target_statistics import TargetScale
from dkl.methods.frequency_search.column_subsets import LEAST_COLUMNS
from dkl.methods.frequency_search.frequency_space import FourierSpace, FrequencyPool, FrequencySpace
from dkl.methods.frequency_search.learner import PreparedRows, SearchStrategy
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.frequency_search.searched_rows import KEPT_BYTES
from dkl.methods.margin.driver import CorrectiveDriver
from dkl.methods.margin.problem import CorrectiveProblem, CorrectiveState, RoundSchedule
from dkl.methods.parameters import kept_frequencies
from dkl.methods.rounds.learner import WorkingLoss
from dkl.methods.rounds.sums import HeldTargets
from dkl.passes.memory import CACHE_SHARE
from dkl.passes.room import own_room
from dkl.solvers.losses import LOG_LINK

# Rows of the first search: a 20th of all, but at least 10,000, at most 400,000, and at most 64 MiB.
_FIRST_SAMPLE, _SAMPLED_SHARE, _MOST_SAMPLED, _SAMPLE_BYTES = 10_000, 0.05, 400_000, 64 << 20
# The most points with n_features="auto", and its patience in rounds.
AUTO_FEATURES, _AUTO_PATIENCE = 2_000, 5
_CHAINS, _CHAINS_A_CANDIDATE = 20, 2.0
_STEPS, _STRIDE = 5, 0.2
# Share of the chains that move on neighbourhoods of correlated columns, and the number of points from which they are
# used: on held-out rows of MNIST 1,000 features improve by it (4 v 9 0.1 %, ten digits 0.4 to 0.6), the first hundred
# do not.
_NEAR_SHARE, _NEAR_FROM = 0.85, 50
# Steps of an ascent on at least _MANY_ROWS rows, where longer ascents improve the features.
_LONG_STEPS, _MANY_ROWS = 20, 200_000
# Up to _LOW_DIMENSION columns there is less noise to fit. Peaks are farther apart there, so ascents are long, and the
# first step is at least _LEAST_STRIDE / sqrt(d).
_LEAST_STRIDE, _LOW_DIMENSION = 1.4, 10
# On few rows an ascent fits noise. Below _FEW rows for each column, of which at most _LOW_DIMENSION count, half of the
# features are random draws, and the number of searched ones is bounded by a share of the rows; below _VERY_FEW searched
# points are the best of many starts, without ascent.
_FEW, _VERY_FEW = 500, 150
_FEW_SHARE, _VERY_FEW_SHARE = 1 / 10, 1 / 20
# The bound on searched features for numeric targets, as a share of the rows: a number has more information than a
# label.
_NUMBERS_SHARE = 3 / 10
_STARTS = 200
# Growth of a late round with several classes, which find equally good features in fewer, larger rounds; one model does
# not.
_LATE_GROWTH = 0.35
# For n rows below this number the last model's penalty is multiplied by n / _ENOUGH_ROWS.
_ENOUGH_ROWS = 10_000
# The last steps under the log loss and with several classes use an upper bound of the curvature: they are shorter than
# Newton's, and approach the model of `LogisticRegression` or `LinearSVC` gradually. They end when one lowers the
# objective by less than _LEAST_GAIN of it, or after _SETTLING_STEPS passes.
_SETTLING_STEPS = 30
_LEAST_GAIN = {
    **dict.fromkeys(("log_loss", "softmax", "huber", "poisson", "gamma"), 1e-7),
    **dict.fromkeys(("squared_hinge", "pinball"), 1e-6),
}
# The C for C=None, 1/80.
_C = 0.0125
# C multiplies the whole square of an error, as in `LinearSVR`, which is twice the loss of that name.
_C_OF = {"squared_error": 2.0}


@dataclass(frozen=True, eq=False)
class CorrectiveSolver(SearchStrategy):
    """`solver="corrective"` of MarginFeatures: the working model is refitted after each round.

    Parameters
    ----------
    n_features, rounds, features_per_round, tol, patience, validation_fraction
        As in MarginFeatures.
    sparse_share, plain_share, max_norm, refine
        As in MarginFeatures.
    loss : {"squared_hinge", "log_loss", "softmax", "squared_error", "huber", "pinball", "poisson", "gamma"} or None
        None is "squared_hinge" for classes, "squared_error" for numbers.
    epsilon, quantiles
        As in MarginFeatures.
    C : float or None
        None is 1/80 during the search, and larger for the last model on few rows.
    chains : int or None
        None is twice the candidates of a round, at least 20, and 200 on very few rows.
    steps, stride, noise : int, float, float or None
        None is 5 steps (20 on many rows or few columns, 1 on very few rows) of 0.2, without noise.
    search_rows : int or None
        None is a 20th of all rows, at least 10,000.
    memory_limit : int, str or None
        Limit of the process: with less memory fewer features stay between rounds; the bits are the same.
    """

    n_features: Any
    loss: str | None
    epsilon: float
    quantiles: Sequence[float]
    C: float | None
    rounds: int | None
    features_per_round: int | None
    tol: float | None
    patience: int | None
    validation_fraction: float
    chains: int | None
    steps: int | None
    stride: float | None
    noise: float | None
    sparse_share: float
    plain_share: float | None
    search_rows: int | None
    max_norm: float | None
    refine: Any
    memory_limit: int | str | None

    stage: ClassVar[str] = "rounds"

    def driver(self) -> CorrectiveDriver:
        """The driver, which may store features of the searched rows in half the memory that passes use to cache blocks.

        The rows of a search and the ascent on them, 128 MiB, are subtracted first.
        """
        left = max(0, own_room(self.memory_limit).nbytes - 2 * _SAMPLE_BYTES)
        return CorrectiveDriver(min(KEPT_BYTES, int(CACHE_SHARE * left) // 2))

    def continued(self, last: Mapping[str, Any], dataset: Dataset, drawn: int) -> tuple[np.ndarray | None, int]:
        """The points of the last fit, to which further ones are added (None after a game), and the seed.

        It is the newly drawn seed, since further rounds must draw other numbers.
        """
        return last.get("points_"), drawn

    def problem(self, rows: PreparedRows, start: np.ndarray | None) -> CorrectiveProblem:
        """The problem on these rows; raises ValueError for a loss that does not match the targets."""
        dataset = rows.dataset
        space = self._frequency_space(rows)
        held_out = self._held_out(rows)
        loss = self._loss(dataset)
        targets = loss.targets(dataset, self._target_units(rows, loss.name), rows.class_weight)
        n_models = len(targets.models)
        most = max(1_000, min(_MOST_SAMPLED, rows.within(_SAMPLE_BYTES)))
        first = self.search_rows or min(max(_FIRST_SAMPLE, int(_SAMPLED_SHARE * dataset.n_rows)), most)
        # |u|^2 / 2 + C sum loss on features of amplitude 1 / sqrt(m) is ridge m |w|^2 / 2 + sum loss on unscaled ones
        ridge = 1.0 / (_C_OF.get(loss.name, 1.0) * (_C if self.C is None else self.C))
        # a strong penalty keeps features diverse during the search, but on few rows it is too strong for predictions
        last_ridge = ridge * (min(1.0, rows.total_weight / _ENOUGH_ROWS) if self.C is None else 1.0)
        return CorrectiveProblem(
            space=space,
            targets=HeldTargets(targets, None if held_out is None else held_out.mask),
            n_models=n_models,
            n_rows=dataset.n_rows,
            n_points=self._n_points(rows, space),
            total_weight=rows.total_weight * (1.0 - (0.0 if held_out is None else held_out.share)),
            loss=loss.table,
            ridge=last_ridge if self.n_features == "auto" else ridge,
            last_ridge=last_ridge,
            schedule=self._schedule(rows, space, n_models, loss.name),
            sample_rows=first,
            most_rows=max(first, most),
            seed=rows.seed,
            dtype=rows.dtype,
            start=start,
        )

    def fitted(self, rows: PreparedRows, problem: CorrectiveProblem, state: CorrectiveState) -> dict[str, Any]:
        """The points as a feature map with amplitudes 1 / sqrt(m), and the model on it, in units of the targets.

        A feature of a finite set that was found c times occurs once, with amplitude sqrt(c / m) (Bullins, Zhang & Zhang
        2018, appendix A.3).
        """
        loss, points = self._loss(rows.dataset), state.points
        if isinstance(problem.space, FourierSpace):
            # searches in R^d never find a point twice
            first = position = np.arange(len(points))
            counts = np.ones(len(points))
        else:
            _, first, position, repeats = np.unique(points, True, True, True, axis=0)
            order = np.argsort(first)
            first, counts = first[order], repeats[order].astype(np.float64)
            position = np.argsort(order)[position.reshape(-1)]
        # coefficients of a feature found several times add up: (K, parts, distinct points)
        by_point = state.coefficients[:, :-1].reshape(problem.n_models, problem.parts, -1)[:, :, : len(points)]
        merged = np.zeros((len(first), problem.n_models, problem.parts))
        np.add.at(merged, position, by_point.transpose(2, 0, 1))
        coefficients = merged.transpose(1, 2, 0)
        amplitudes = np.sqrt(counts / max(1, len(points)))
        coef = (coefficients / amplitudes).reshape(problem.n_models, -1)
        units = self._target_units(rows, loss.name)
        coef, intercept = loss.in_own_units(coef, state.coefficients[:, -1], units)
        return {
            "feature_map_": replace(problem.space.feature_map(points[first]), amplitudes=amplitudes),
            "weights_": shares_of_lengths(coefficients),
            "coef_": coef,
            "intercept_": intercept,
            "loss_": loss.name,
            "history_": state.lines(),
            "duality_gap_": float(state.series("duality_gap")[-1]),
            # the gap is an estimate, since a search bounds the largest potential from below only
            "certified_": False,
            "message_": state.message,
            "points_": points,
        }

    def _loss(self, dataset: Dataset) -> WorkingLoss:
        """The loss of the working model; raises ValueError if it does not match the targets."""
        loss = WorkingLoss.of(self, dataset, of_classes="squared_hinge")
        if self.refine and not is_refinable(loss.name, has_classes=dataset.classes is not None):
            of_classes = " of classes" if dataset.classes is not None else ""
            raise ValueError(
                f"refine={self.refine!r} descends on the squared error of numbers, or on the squared hinge or the log "
                f"loss of each class against the rest, and loss={loss.name!r}{of_classes} is none of them; take one, "
                "or set refine=0"
            )
        return loss

    @staticmethod
    def _target_units(rows: PreparedRows, loss: str) -> TargetScale | None:
        """Mean and deviation of the targets; None for classes, and for losses with mean exp(f)."""
        return None if loss in LOG_LINK else rows.target_scale

    def _held_out(self, rows: PreparedRows) -> HeldOut | None:
        """The rows that a machine withholds, which judge the rounds, too; else those for patience or refinement."""
        needs_rows = self.patience is not None or self.n_features == "auto" or bool(self.refine)
        return rows.context.left_out(self.validation_fraction, rows.seed, needs_rows=needs_rows)

    def _n_points(self, rows: PreparedRows, space: FrequencySpace) -> int:
        """The most points to find; a finite family has no more than all of its own."""
        if self.n_features == "auto":
            most = AUTO_FEATURES // space.columns_a_point
        else:
            most = kept_frequencies("MarginFeatures", self.n_features, rows.family)
        return min(most, space.pool.n_frequencies) if isinstance(space, FrequencyPool) else most

    def _schedule(self, rows: PreparedRows, space: FrequencySpace, n_models: int, loss: str) -> RoundSchedule:
        """The schedule of the rounds: how many points they add, how many of these are searched, and when they end."""
        dataset, context = rows.dataset, rows.context
        few = _are_fewer(dataset, _FEW)
        share = (0.5 if few else 0.0) if self.plain_share is None else self.plain_share
        schedule = RoundSchedule(rounds=self.rounds, patience=self.patience, tol=self.tol, plain_share=share)
        # for one model of the squared hinge steps are Newton's own, and a machine fits its own model
        settles = not (loss == "squared_hinge" and (n_models == 1 or context.for_machine))
        if loss in _LEAST_GAIN and settles:
            schedule = replace(schedule, settling=_SETTLING_STEPS, least_gain=_LEAST_GAIN[loss])
        if few and self.plain_share is None:
            share_of_labels = _VERY_FEW_SHARE if _are_fewer(dataset, _VERY_FEW) else _FEW_SHARE
            searched_share = _NUMBERS_SHARE if dataset.classes is None else share_of_labels
            schedule = replace(schedule, most_searched=max(1, int(searched_share * dataset.total_weight)))
        if self.n_features == "auto" and self.patience is None:
            schedule = replace(schedule, patience=_AUTO_PATIENCE)
        if context.withheld is not None and schedule.patience is None:
            # the machine that withholds rows fits its own model
            schedule = replace(schedule, settling=0)
        if self.features_per_round is not None:
            first = max(1, self.features_per_round // space.columns_a_point)
            return replace(schedule, first=first, growth=0.0, late_growth=0.0)
        # with patience a round is a unit of progress, so rounds stay small
        several = dataset.classes is not None and n_models > 1 and not few
        return replace(schedule, late_growth=_LATE_GROWTH) if several and schedule.patience is None else schedule

    def _frequency_space(self, rows: PreparedRows) -> FrequencySpace:
        """The set of features to search, with longer ascents on more rows."""
        dataset = rows.dataset
        d, very_few = dataset.n_columns, _are_fewer(dataset, _VERY_FEW)
        is_long = dataset.total_weight >= _MANY_ROWS or d <= _LOW_DIMENSION
        steps = 1 if very_few else (_LONG_STEPS if is_long else _STEPS)
        # finding correlated columns takes memory, and is useful for many dense rows with many columns
        has_neighbours = not (_are_fewer(dataset, _FEW) or dataset.source.is_sparse or d < LEAST_COLUMNS)
        options = SearchOptions(
            chains=(_STARTS if very_few else _CHAINS) if self.chains is None else self.chains,
            steps=steps if self.steps is None else self.steps,
            stride=max(_STRIDE, _LEAST_STRIDE / np.sqrt(d)) if self.stride is None else self.stride,
            noise=0.0 if self.noise is None else self.noise,
            sparse_share=self.sparse_share,
            near_share=_NEAR_SHARE if has_neighbours else 0.0,
            near_steps=max(SearchOptions.near_steps, steps) if self.steps is None else self.steps,
            max_norm=self.max_norm,
        )
        space = rows.frequency_space("MarginFeatures", options, _CHAINS_A_CANDIDATE if self.chains is None else 0.0)
        if not isinstance(space, FourierSpace):
            return space
        return replace(space, near_room=max(0, self._n_points(rows, space) - _NEAR_FROM))


def _are_fewer(dataset: Dataset, rows_a_column: int) -> bool:
    """Whether there are fewer rows than this number for each column, of which at most _LOW_DIMENSION count."""
    return dataset.total_weight < rows_a_column * min(dataset.n_columns, _LOW_DIMENSION)

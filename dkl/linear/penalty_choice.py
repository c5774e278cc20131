"""The penalty of a Newton head chosen on held-out rows: all candidates in the same passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import mapping_flops
from dkl.kernels.newton.gram import packed_size
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.head import NewtonDriver, NewtonProblem, NewtonState, fold_sums
from dkl.linear.judge import (
    JUDGED_MULTIPLIERS,
    Folds,
    PenaltyChoice,
    SeenRows,
    folds_of,
    gains,
    last_least,
    out_of_fold,
)
from dkl.linear.minibatches import HeldOut
from dkl.linear.sums import held_out_block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record

# C beside loss sums on features of squared length 1, from the strongest penalty to the weakest
PENALTIES = {
    "squared_hinge": (0.01, 0.1, 1.0, 10.0, 100.0),
    "squared_error": tuple(10.0 ** (0.5 * step) for step in range(-4, 9)),
}
_OTHER_PENALTIES = tuple(10.0**step for step in range(-3, 5))
# Of classes that are fitted together; the strongest of them cost least.
_JOINT_PENALTIES = tuple(10.0**step for step in range(-2, 7))

# The passes that a candidate takes before it is judged: from a given start, by fixed Hessians, from zero, and for the
# squared error, whose first step is exact.
_STEPS_WARM, _STEPS_FIXED, _STEPS_COLD, _STEPS_SQUARE = 2, 2, 3, 1
_DECREMENT = 0.01
# The same of losses other than these two: even the best model may lower the objective by little.
_STEPS_OTHERS, _DECREMENT_OF_OTHERS = 6, 1e-4
# The same of all classes together, whose steps are cheap, and many under light penalties.
_STEPS_TOGETHER, _DECREMENT_TOGETHER = 100, 5e-4
# Share of their loss by which the last penalty must have lowered it for a lighter one to be tried.
_GAIN_TOGETHER = 0.005
# Of the penalties of the squared error every third one is tried on wide rows.
_WIDE_PENALTIES = 3
# Penalties that are told apart where one is known that fewer features prefer.
_NEIGHBOURS = 3
# The same of all classes together, at most: the stronger neighbour first, and then lighter ones.
_MOST_TOGETHER = 4


@dataclass(frozen=True, eq=False)
class Candidates:
    """Linear models for every output, penalty and fold: model ``(k * A + a) * F + f`` of a Newton problem.

    Parameters
    ----------
    problem : NewtonProblem
        Of all of them.
    folds : Folds
    alphas : ndarray of shape (A,)
        From the strongest to the weakest.
    strengths : ndarray of shape (A,)
        The same as C beside the sum of the losses, on features of squared length 1: what features of other sizes share.
    n_outputs : int
        K, the models of one penalty and fold.
    are_near : bool
        They are those near a penalty that is known: several choices have the same ones.
    calibrated : bool
        The rows held out also say which temperature turns decision values into probabilities; of classes alone.
    """

    problem: NewtonProblem
    folds: Folds
    alphas: np.ndarray
    strengths: np.ndarray
    n_outputs: int
    are_near: bool = False
    calibrated: bool = False

    def judged(self, state: NewtonState) -> BlockSum:
        """The record that judges where the candidates stand and where their next steps lead, on the rows held out."""
        shape = (self.n_outputs, len(self.alphas) * self.folds.count, self.problem.width)
        models = np.stack([version.reshape(shape) for version in self._versions(state)])
        return self._judging(models, self._judging_loss(), JUDGED_MULTIPLIERS if self.calibrated else np.zeros(0))

    def _versions(self, state: NewtonState) -> list[np.ndarray]:
        """Where the candidates stand, and where their next steps lead: of squared errors at the optimum."""
        return [state.proposal] if self.problem.loss == "squared_error" else [state.coefficients, state.proposal]

    def judged_by_sums(self, state: NewtonState) -> dict[str, np.ndarray] | None:
        """What `judged` would sum, by the sums of each fold that the steps were made of; None where only a pass tells.

        Classes are told apart by their margins, which such sums do not hold.
        """
        if state.by_fold is None or self.problem.targets.n_classes is not None:
            return None
        A, F = len(self.alphas), self.folds.count
        moves = state.directions.reshape(self.n_outputs, A, F, self.problem.width)
        _, *folds = fold_sums(state.by_fold)
        # a move from the start is a model of what the start leaves of the targets
        losses = [each.losses(moves[:, :, fold], self.problem.dtype) for fold, each in enumerate(folds)]
        told = [loss for loss in losses if loss is not None]
        if len(told) < F:
            return None
        loss = np.stack(told, axis=2).mean(axis=0).reshape(1, -1)
        return {"loss": loss, "weight": np.tile([each.weight for each in folds], A)}

    @property
    def is_joint(self) -> bool:
        """Whether the classes are fitted together, of which none is a problem of its own."""
        return self.problem.loss == "log_loss" and self.n_outputs > 1

    def together(self, alpha: float) -> list[NewtonProblem]:
        """The problem of all classes together on the rows that each fold leaves, under one penalty."""
        return [
            replace(
                self.problem.together(),
                targets=replace(self._outputs(), kept=SeenRows(self.folds, fold, self.problem.targets.kept)),
                alpha=alpha,
                max_steps=_STEPS_TOGETHER,
                decrement=_DECREMENT_TOGETHER,
                token=self.problem.token,
            )
            for fold in range(self.folds.count)
        ]

    def judged_together(self, models: np.ndarray) -> BlockSum:
        """The record that judges models of all classes together, (K, folds, m + 1), by their own loss."""
        return self._judging(models[None], {"name": "softmax"}, np.zeros(0))

    def _outputs(self) -> NewtonTargets:
        """The targets of one penalty and fold."""
        targets, copies = self.problem.targets, len(self.alphas) * self.folds.count
        return replace(targets, models=targets.models[::copies], folds=None, fold=None)

    def _judging(self, models: np.ndarray, loss: dict[str, Any], multipliers: np.ndarray) -> BlockSum:
        """The record that judges models (v, K, c, m + 1), where c counts the folds of each penalty in turn."""
        each, n_multipliers = models.shape[::2][:2], len(multipliers)
        shapes: dict[str, tuple[int, ...]] = {"loss": each, "weight": (models.shape[2],)}
        if self.problem.targets.n_classes is not None:
            shapes |= {"right": shapes["loss"], "rows": shapes["weight"]}
        if n_multipliers:
            shapes |= dict.fromkeys(("label", "uniform"), (*each, 3, n_multipliers))
        return BlockSum(
            name="held-out scores",
            function=held_out_block,
            accumulators={name: Accumulator(shape) for name, shape in shapes.items()},
            operands={
                "feature_map": self.problem.feature_map,
                "models": models,
                "targets": self._outputs(),
                "folds": self.folds,
                "fold": np.tile(np.arange(self.folds.count), models.shape[2] // self.folds.count),
                "dtype": self.problem.dtype,
                "loss": loss,
                "multipliers": multipliers,
            },
            cost=_JudgingCost(self.problem.feature_map, models[..., 0].size, self.folds, n_multipliers),
        )

    def _judging_loss(self) -> dict[str, Any]:
        """The arguments of `newton_loss` for the outputs."""
        problem = self.problem
        quantiles = None if problem.quantiles is None else problem.quantiles[:: problem.n_models // self.n_outputs]
        # classes are told apart by their margins, whichever square was fitted
        squares = problem.targets.n_classes is not None and problem.loss == "squared_error"
        name = "squared_hinge" if squares else problem.loss
        return {"name": name, "epsilon": problem.epsilon, "quantiles": quantiles}

    def choose(self, state: NewtonState, sums: dict[str, np.ndarray]) -> PenaltyChoice:
        """How the penalties do over all folds, each where its models stand or where their next steps lead.

        Raises
        ------
        ValueError
            If no row is held out.
        """
        A, F = len(self.alphas), self.folds.count
        scores, accuracies, weight = out_of_fold(sums, (A, F), self.folds.held_out)
        # of equal versions the last one is taken
        taken, each = last_least(-scores), np.arange(A)
        accuracies = accuracies[taken, each] if accuracies.size else np.zeros(0)
        found = PenaltyChoice(self.alphas, scores.max(axis=0), np.zeros((0, 0)), self.strengths, accuracies)
        version = self._versions(state)[taken[found.best]]
        start = version.reshape(self.n_outputs, A, F, -1)[:, found.best].mean(axis=1)
        if not self.calibrated:
            return replace(found, start=start)
        both = np.stack([sums["label"], sums["uniform"]], axis=2)
        calibration = both.reshape(-1, A, F, *both.shape[2:]).sum(axis=2)[taken, each]
        return replace(found, start=start, calibration=calibration, judging_weight=weight)


@dataclass(frozen=True, eq=False)
class _JudgingCost:
    """What scoring the held-out rows of a block by all candidates costs: those rows alone are mapped."""

    feature_map: FeatureMap
    n_models: int
    folds: Folds
    n_multipliers: int = 0

    def __call__(self, rows: int, columns: int) -> Cost:
        mapping = mapping_flops(columns, self.feature_map)
        # a row is calibrated for the models that have not seen it, with some twenty operations a temperature
        calibrating = 20.0 * self.n_multipliers / self.folds.count
        scores = (2.0 * self.feature_map.n_features + calibrating) * self.n_models
        judging = rows * min(1.0, self.folds.held_out.share * self.folds.count)
        return Cost(judging * (mapping + scores), int(judging * 8 * (self.feature_map.n_features + 2 * self.n_models)))


def choose_penalty(
    candidates: Candidates,
    solve: Callable[[NewtonProblem, str], NewtonState],
    read: Callable[[BlockSum], dict[str, np.ndarray]],
) -> PenaltyChoice:
    """Fit all candidates in the same passes, then judge them on the rows that each has not seen.

    That takes one pass more, unless the sums of each fold tell.

    Parameters
    ----------
    candidates : Candidates
    solve : callable
        The last state of the Newton steps of a problem, by its name among those of this choice.
    read : callable
        The sums of a record in a pass over the rows.

    Raises
    ------
    ValueError
        If no row is held out.
    """
    if candidates.is_joint:
        return _chosen_together(candidates, solve, read)
    state = solve(candidates.problem, "penalty")
    sums = candidates.judged_by_sums(state)
    return candidates.choose(state, read(candidates.judged(state)) if sums is None else sums)


def _chosen_together(
    candidates: Candidates,
    solve: Callable[[NewtonProblem, str], NewtonState],
    read: Callable[[BlockSum], dict[str, np.ndarray]],
) -> PenaltyChoice:
    """How penalties do for all classes together.

    From the strongest one on, each starts where the one before it has ended. The first that gains no more is the last
    one, since fits take longer the lighter it is.
    """
    F, n_known = candidates.folds.count, 0
    grams: list[np.ndarray | None] = [None] * F
    starts: list[Any] = [None] * F
    scores, accuracies = np.full(len(candidates.alphas), -np.inf), np.zeros(len(candidates.alphas))
    best = np.zeros((candidates.n_outputs, candidates.problem.width))
    for number, alpha in enumerate(candidates.alphas):
        for fold, problem in enumerate(candidates.together(float(alpha))):
            state = solve(replace(problem, start=starts[fold], metric=grams[fold]), f"penalty-{fold}-{number}")
            starts[fold], grams[fold] = problem.by_function(state.coefficients)[0], state.hessian
        models = np.stack(starts, axis=1)
        score, accuracy, _ = out_of_fold(read(candidates.judged_together(models)), (1, F), candidates.folds.held_out)
        before, n_known = scores.max(), number + 1
        scores[number], accuracies[number] = score[0, 0], accuracy[0, 0]
        if np.argmax(scores) == number:
            best = models.mean(axis=1)
        if number > 0 and not gains(1.0 - scores[number], 1.0 - before, _GAIN_TOGETHER):
            break
    kept = slice(None if candidates.are_near else n_known)
    return PenaltyChoice(candidates.alphas[kept], scores[kept], best, candidates.strengths[kept], accuracies[kept])


def penalty_passes(candidates: Candidates) -> list[tuple[Sequence[Record], int]]:
    """The records of each kind of pass of `choose_penalty`, and how often it runs at most."""
    driver = NewtonDriver()
    if not candidates.is_joint:
        judged = candidates.judged(driver.init(candidates.problem))
        return [*driver.plan(candidates.problem), ([judged], 1)]
    passes: list[tuple[Sequence[Record], int]] = []
    for alpha in candidates.alphas:
        problems = candidates.together(float(alpha))
        passes += [plan for problem in problems for plan in driver.plan(problem)]
        models = np.zeros((candidates.n_outputs, len(problems), candidates.problem.width))
        passes.append(([candidates.judged_together(models)], 1))
    return passes


def penalty_memory(candidates: Candidates) -> dict[str, int]:
    """What `choose_penalty` holds beside the passes, with what each fold keeps for the next penalty."""
    if not candidates.is_joint:
        return NewtonDriver().memory(candidates.problem, 0, 0)
    (first, *others), width = candidates.together(1.0), candidates.problem.width
    kept = 8 * (packed_size(0, width) + candidates.n_outputs * width)
    return {**NewtonDriver().memory(first, 0, 0), "what folds keep": (1 + len(others)) * kept}


def penalty_candidates(
    base: NewtonProblem,
    held_out: HeldOut,
    *,
    n_rows: float,
    square_length: float,
    start: np.ndarray | None,
    single: bool = False,
    near: PenaltyChoice | None = None,
    calibrated: bool = False,
) -> Candidates:
    """All penalties for one problem, on folds of its rows.

    Of several classes they are told apart on the first features alone where the Hessians of all classes would not fit:
    each pass would then serve one model, and the best penalty hardly depends on the number of features.

    Parameters
    ----------
    base : NewtonProblem
        Its alpha does not count.
    held_out : HeldOut
        With a share above 0.
    n_rows : float
    square_length : float
        The mean squared length of mapped rows, which the penalties are relative to.
    start : ndarray of shape (K, m + 1) or None
        A model that all candidates start from.
    single : bool
        No further folds, however few rows are held out.
    near : PenaltyChoice or None
        What fewer features of the same kind have preferred: only that penalty and its neighbours are candidates; of
        classes that are fitted together the stronger one, and lighter ones.
    calibrated : bool
        As of `Candidates`.
    """
    if (first := _first_features(base)) is not None:
        # a model of all features is none of the first ones
        base, start = first, None
    K, folds = base.n_models, folds_of(held_out, n_rows, base.feature_map.n_features)
    folds = replace(folds, count=1) if single else folds
    # a map of zeros has no length; any penalty will do
    length = square_length if square_length > 0.0 else 1.0
    # in wide rows each penalty costs as many products, and a decade more or less tells little
    every = _WIDE_PENALTIES if base.is_wide and base.loss == "squared_error" else 1
    is_joint = base.loss == "log_loss" and K > 1
    others = _JOINT_PENALTIES if is_joint else _OTHER_PENALTIES
    strengths = np.array(PENALTIES.get(base.loss, others))[::every]
    if near is not None and len(near.strengths):
        # from one number of features to another the best penalty hardly moves
        away = np.abs(np.log(strengths / near.strengths[near.best]))
        found = np.sort(np.argsort(away, kind="stable")[:_NEIGHBOURS])
        # all classes together go on to lighter ones while they gain
        strengths = strengths[found[0] : found[0] + _MOST_TOGETHER] if is_joint else strengths[found]
    alphas = length / (strengths * base.total_weight)
    copies = len(alphas) * folds.count
    # one output's Hessians are cheap, and tell penalties apart a little better
    fixed = start is not None and folds.count == 1 and K > 1 and base.loss == "squared_hinge"
    if base.loss not in PENALTIES:
        max_steps = _STEPS_OTHERS
    elif base.loss == "squared_error":
        max_steps = _STEPS_SQUARE
    elif start is None:
        max_steps = _STEPS_COLD
    else:
        max_steps = _STEPS_FIXED if fixed else _STEPS_WARM
    targets = replace(
        base.targets,
        models=np.repeat(base.targets.models, copies),
        folds=folds,
        fold=np.tile(np.arange(folds.count), K * len(alphas)),
    )
    problem = replace(
        base,
        targets=targets,
        alpha=np.tile(np.repeat(alphas, folds.count), K),
        decrement=_DECREMENT if base.loss in PENALTIES else _DECREMENT_OF_OTHERS,
        max_steps=max_steps,
        start=None if start is None else np.repeat(start, copies, axis=0),
        fixed=fixed,
        quantiles=None if base.quantiles is None else np.repeat(base.quantiles, copies),
    )
    return Candidates(problem, folds, alphas, strengths, K, are_near=near is not None, calibrated=calibrated)


def _first_features(base: NewtonProblem) -> NewtonProblem | None:
    """The problem on no more features than Hessians of all models are held of, as long as all; None where all are."""
    whole = base.feature_map
    kept = max(1, base.held_features // whole.columns_a_frequency)
    has_few = base.loss in ("squared_error", "log_loss") or base.n_models == 1
    if base.is_wide or has_few or kept >= whole.n_frequencies:
        return None
    first = whole.take(np.arange(kept))
    longer = np.sqrt(np.sum(whole.amplitudes**2) / max(np.sum(first.amplitudes**2), np.finfo(np.float64).tiny))
    return replace(base, feature_map=replace(first, amplitudes=longer * first.amplitudes))

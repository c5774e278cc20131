"""Where the kernel player of a game in R^d looks next: peaks on a sample of rows, whose size follows from the last."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dkl.kernels.scale import scale_rows
from dkl.methods.frequency_search.peak_search import grown_sample, pair_potentials
from dkl.methods.game.problem import GameProblem, GameState, checks_mean, searched_space
from dkl.methods.game.projection import project_dual
from dkl.protocols.block import Block


def next_candidates(
    problem: GameProblem, state: GameState, block: Block, values: np.ndarray, mean: np.ndarray
) -> GameState:
    """Candidates of the next round: peaks on the sample, under dual weights projected on the sample alone."""
    signs, weight, _ = problem.targets(block)
    # the sample is drawn by the rows' own weights: what is left is the classes' factor
    factor = (weight / block.weights)[:, None]
    # the column "dual" is not yet projected, and the multipliers of all rows come with later passes
    alpha, _ = project_dual(values, signs, factor[:, 0], problem.upper)
    candidates, promised = _peaks(problem, block, signs * alpha * factor, len(state.history))
    if checks_mean(problem, state):
        others, _ = _peaks(problem, block, signs * mean * factor, len(state.history))
        candidates = np.concatenate([candidates, others])
        # candidates under the mean weights judge no sample: they come last wherever the best are looked for
        promised = np.concatenate([promised, np.full(len(others), -1.0)])
    return replace(state, candidates=candidates, promised=promised)


def _peaks(problem: GameProblem, block: Block, S: np.ndarray, round: int) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies and their pair potentials on the sample, highest first."""
    space, totals, squares = searched_space(problem), np.abs(S).sum(axis=0), np.square(S).sum(axis=0)
    # v <= sum_k (sum_i |S_ik|)^2, so that no potential of S / norm is above 1
    norm = max(float(np.sqrt(np.square(totals).sum())), np.finfo(np.float64).tiny)
    X = scale_rows(block.X, space.feature_map(space.none).scaler, problem.dtype)
    points, potentials = space.search(X, S / norm, problem.n_candidates, problem.seed + 7919 * (round + 1))
    return points, pair_potentials(potentials, totals / norm, squares / norm**2)


def regrown(
    problem: GameProblem, state: GameState, potentials: np.ndarray, totals: tuple[np.ndarray, np.ndarray]
) -> GameState:
    """A larger sample for the next search where the peaks of this one do not hold on all rows."""
    if state.promised is None:
        return state
    verified = pair_potentials(potentials, *totals)
    best = np.argsort(-state.promised, kind="stable")[: max(10, problem.rules.per_round)]
    rows = grown_sample(state.sample_rows, state.promised[best], verified[best], most=problem.most_rows)
    return replace(state, sample_rows=max(rows, state.sample_rows))

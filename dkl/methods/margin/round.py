"""The pass of a corrective round: its record, the columns of its sums, and the Gram matrix that they renew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dkl.kernels.normal_equations import design_rows
from dkl.methods.margin.problem import CorrectiveProblem, CorrectiveState
from dkl.methods.margin.sums import CorrectiveRound, corrective_block
from dkl.protocols.records import SINCOS_FLOPS, Accumulator, BlockSum, Cost, RowSample

# no accumulator of a pass is larger: what is, travels in panels of rows
_PANEL_BYTES = 1 << 26


def sample_record(problem: CorrectiveProblem, state: CorrectiveState) -> RowSample:
    """The rows that are searched on after this pass: fresh ones every few rounds, and whenever more are wanted."""
    age = state.passes // problem.schedule.sample_rounds
    return RowSample("rows to search on", state.sample_rows, problem.seed, age)


def round_record(problem: CorrectiveProblem, state: CorrectiveState) -> BlockSum:
    """The sums of the pass that evaluates a state's working model and verifies its candidates."""
    old, new = column_numbers(problem.parts, state.n_points, len(state.candidates))
    width = len(old) + len(new)
    # A Gram matrix of all rows in full stays as it is once it is known; one of the rows with curvature has to follow
    # the model. Its upper triangle of len(old) columns is cut into panels of rows of at most 64 MiB.
    panels, start = [], 0
    changes = problem.active or state.gram_at.size == 0
    while changes and start < len(old):
        stop = min(len(old), start + max(1, _PANEL_BYTES // (8 * (len(old) - start))))
        panels.append((start, stop))
        start = stop
    round_ = CorrectiveRound(
        loss=problem.loss,
        coefficients=_widened(state.coefficients, old, width),
        old=old,
        new=new,
        active=problem.active,
        previous=_widened(state.gram_at, old, width) if problem.active and state.gram_at.size else None,
        panels=tuple(panels),
        dtype=problem.dtype,
    )
    K = problem.n_models
    per_model = ("loss", "dual", "curvature", "absolutes", "squares", "support")
    accumulators = {name: Accumulator((K,)) for name in per_model}
    accumulators |= {"gradient": Accumulator((K, width)), "held_out": Accumulator((2,))}
    accumulators["cross"] = Accumulator((width, len(new)))
    for j, (start, stop) in enumerate(panels):
        accumulators[f"change_{j}"] = Accumulator((stop - start, len(old) - start))
    feature_map = problem.space.feature_map(np.concatenate([state.points, state.candidates]))

    def cost(rows: int, columns: int) -> Cost:
        mapping = feature_map.n_frequencies * (2.0 * columns + SINCOS_FLOPS)
        products = 4.0 * K * width + 2.0 * width * len(new) + (len(old) ** 2 if panels else 0)
        itemsize = np.dtype(problem.dtype).itemsize
        product = max(((stop - start) * (len(old) - start) for start, stop in panels), default=0)
        tile = min(rows, design_rows(width - 1, problem.dtype)) * width
        return Cost(rows * (mapping + products), itemsize * (6 * tile + product))

    operands = {"feature_map": feature_map, "round": round_, "targets": problem.targets}
    return BlockSum("corrective round", corrective_block, accumulators, operands, cost)


def most_candidates(parts: int, n_old: int) -> int:
    """Candidates whose Gram columns, with those of `n_old` points, are within 64 MiB; at least one."""
    # q of them have parts^2 q (n_old + q) numbers: the larger root of a quadratic equation, and one less for rounding
    numbers = _PANEL_BYTES / (8 * parts**2)
    return max(1, int((np.sqrt(n_old**2 + 4.0 * numbers) - n_old) / 2.0) - 1)


def column_numbers(parts: int, n_old: int, n_new: int) -> tuple[np.ndarray, np.ndarray]:
    """The columns of `n_old` points and the intercept, and of `n_new` points after them, in the map of both."""
    # a map has all cosines first, then all sines, and the design matrix a last column of ones
    n = n_old + n_new
    starts = n * np.arange(parts)[:, None]
    old = (starts + np.arange(n_old)).ravel()
    new = (starts + n_old + np.arange(n_new)).ravel()
    return np.append(old, parts * n), new


def spread(coefficients: np.ndarray, n_old: int, n_new: int, parts: int) -> np.ndarray:
    """A model of the old points as one of the old and `n_new` further ones."""
    old, _ = column_numbers(parts, n_old, n_new)
    return _widened(coefficients, old, parts * (n_old + n_new) + 1)


def trimmed(problem: CorrectiveProblem, state: CorrectiveState, ended: str) -> CorrectiveState:
    """With the points of the best round on held-out rows alone (all without `patience`), and no more to find."""
    sizes = state.series("n_features") // problem.parts
    # a best round without points is that of a model of the intercept alone: a map has at least the first points
    best = state.kept or int(sizes[sizes > 0].min(initial=state.n_points))
    kept = state.n_points if problem.schedule.patience is None else best
    columns, _ = column_numbers(problem.parts, kept, state.n_points - kept)
    return replace(
        state,
        points=state.points[:kept],
        coefficients=state.coefficients[:, columns],
        base=state.base[:, columns],
        gram=state.gram[np.ix_(columns, columns)],
        gram_at=state.gram_at[:, columns],
        base_loss=state.base_loss if kept == state.n_points else np.inf,
        limit=kept,
        settled=0,
        ended=ended,
    )


def with_gram(problem: CorrectiveProblem, state: CorrectiveState, sums: Mapping[str, np.ndarray]) -> CorrectiveState:
    """With the Gram matrix brought to the rows of the model that the pass evaluated."""
    at = state.coefficients[:1]
    panels = [sums[f"change_{j}"] for j in range(sum(name.startswith("change_") for name in sums))]
    if not panels:
        return replace(state, gram_at=at)
    gram, start = state.gram.copy(), 0
    for panel in panels:
        stop = start + len(panel)
        # what a panel has below the diagonal need not be there: both triangles take the upper one, the diagonal once
        upper = np.triu(panel)
        gram[start:stop, start:] += upper
        gram[start:, start:stop] += upper.T
        gram[np.arange(start, stop), np.arange(start, stop)] -= np.diagonal(upper)
        start = stop
    return replace(state, gram=gram, gram_at=at)


def _widened(coefficients: np.ndarray, old: np.ndarray, width: int) -> np.ndarray:
    """Models (K, len(old)) on `width` columns, 0 for those that are new."""
    out = np.zeros((len(coefficients), width))
    out[:, old] = coefficients
    return out

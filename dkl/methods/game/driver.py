"""The margin game (Bullins, Zhang & Zhang 2018, Algorithm 2) as a driver: no-regret play, stopped by its duality gap.

A round reads the rows twice. The first pass verifies the candidate features under the dual weights of all rows; the
second takes the dual step along the chosen features and samples the rows of the next search. Between them, passes over
targets and row columns alone (no X) find the multipliers of the projection: at most two for the exact one, ten for the
alternating one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.scale import scale_rows
from dkl.linear.judge import rounds_without_gain
from dkl.methods.choice import block_means
from dkl.methods.frequency_search.frequency_space import search_seconds
from dkl.methods.frequency_search.peak_search import distinct_peaks, grown_sample, pair_potentials
from dkl.methods.game.problem import (
    ALTERNATIONS,
    GameProblem,
    GameState,
    after_reduction,
    candidate_map,
    checks_mean,
    dual_step,
    feasible_of,
    last_metrics,
    least_value,
    next_intercepts,
    opening_records,
    projection_record,
    round_entry,
    row_columns,
    sample_record,
    searched_space,
    standing,
    step_record,
    trials_of,
    verify_record,
)
from dkl.methods.game.projection import first_edges, project_dual
from dkl.methods.rounds.loop import BETWEEN_ROUNDS
from dkl.process import usable_cores
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.records import Record

__all__ = ["GameDriver"]


class GameDriver:
    """Algorithm 2 on any number of rows; see `dkl.protocols.driver.Driver`."""

    def columns(self, problem: GameProblem) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The row columns: dual weights before their projection; means over rounds of dual weights and of scores."""
        return row_columns(problem, ("dual", "mean", "score"))

    def init(self, problem: GameProblem) -> GameState:
        """A new game, or the last state of a continued one, which is final if no rounds or features are left."""
        K, pool, unit, last = problem.n_blocks, problem.pool, problem.rules.unit, problem.start
        if last is not None:
            is_full = pool is None and len(last.mass) >= problem.rules.most
            if is_full or len(last.history) >= problem.rules.rounds:
                return last
            return replace(last, phase="resume", message="")
        # in R^d there are no frequencies yet; a pool has a mass for each feature from the start
        size, parts = (0, 2) if pool is None else (pool.n_frequencies, pool.columns_a_frequency)
        return GameState(
            phase="open",
            mass=np.zeros(size),
            pull=np.zeros((size, parts, K)),
            edges=first_edges(np.zeros(K), np.full(K, 2.0 * unit)),
            intercepts=np.zeros(K),
            spread=np.full(K, 0.5),
            shifts=np.zeros((0, K)),
            found=np.zeros(K, bool),
            sample_rows=min(problem.search_rows, problem.most_rows),
            frequencies=searched_space(problem).none if pool is None else None,
            mean_sums=None if pool is None else np.zeros((size, parts, K)),
        )

    def request(self, problem: GameProblem, state: GameState) -> Sequence[Record] | None:
        """The records of the next pass, by the phase of the game; None at its end."""
        if state.phase == "open":
            return opening_records(problem, state)
        if state.phase == "resume":
            # the former fit ended before the pass that would have followed its last round
            reduction = projection_record(problem, replace(state, shifts=np.zeros((0, problem.n_blocks))))
            if problem.pool is not None:
                return [reduction]
            return [reduction, sample_record(problem, state, len(state.history))]
        if state.phase == "project":
            return [projection_record(problem, state)]
        if state.phase == "verify":
            return [verify_record(problem, state)]
        if state.phase == "step":
            step = step_record(problem, state)
            # also a sample for the next search, unless the limit on rounds or features makes this round the last
            is_below_limit = len(state.mass) + len(state.chosen) < problem.rules.most
            if problem.pool is not None or not is_below_limit or len(state.history) + 1 >= problem.rules.rounds:
                return [step]
            return [step, sample_record(problem, state, len(state.history) + 1)]
        return None

    def step(self, problem: GameProblem, state: GameState, results: Sequence[Any]) -> GameState:
        """The state after the pass of the current phase, from its results."""
        after = {
            "open": _first_state,
            "resume": _continued_state,
            "project": _projected_state,
            "verify": _verified_state,
            "step": _state_after_dual_step,
        }
        return after[state.phase](problem, state, results)

    def metrics(self, problem: GameProblem, state: GameState) -> dict[str, float]:
        """Number, upper bound and relative gap of the last round."""
        return last_metrics(state.history)

    def stopped(self, problem: GameProblem, state: GameState, why: str) -> GameState | None:
        """The state after the last complete round; None before it, and in the middle of a round."""
        if not state.history or state.phase == "step":
            return None
        if state.phase == "done":
            return state
        return replace(
            state,
            phase="done",
            pending={},
            message=f"{why} after {len(state.history)} rounds: {standing(state.history)}",
        )

    def memory(self, problem: GameProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the sampled rows in R^d (stored, scaled, and weighted), and of the chains of a search."""
        if problem.pool is not None:
            return {}
        ascent = searched_space(problem).search_bytes(problem.most_rows, problem.n_candidates)
        return {"searched rows": 3 * problem.most_rows * row_bytes, "chains that climb": ascent}

    def driving(self, problem: GameProblem, n_rows: int, few: Rows, flops_per_second: float) -> float:
        """Seconds of all searches outside passes; 0 for a pool, which is not searched."""
        if problem.pool is not None:
            return 0.0
        searched = problem.rules.rounds * min(problem.search_rows, n_rows)
        seconds = search_seconds(searched_space(problem), few, problem.n_blocks, problem.n_candidates)
        return searched * seconds / usable_cores()

    def plan(self, problem: GameProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The first pass, the reductions of the projections, and the two passes of a round."""
        state = self.init(problem)
        T = problem.rules.rounds
        # the largest pass of each kind: a search proposes n_candidates features at most, and as many for the mean
        # weights
        if problem.pool is None:
            candidates = np.zeros((2 * problem.n_candidates, problem.n_columns), np.float32)
            state = replace(state, candidates=candidates)
        k = min(problem.rules.per_round, problem.rules.most)
        state = replace(state, shifts=np.zeros((1, problem.n_blocks)), step_size=1.0, step_weight=1.0)
        after_choice = replace(state, chosen=np.arange(k), answer=np.zeros((k, state.pull.shape[1], problem.n_blocks)))
        # an exact projection usually takes at most three reductions, of which the pass of the step makes the first
        reductions = ALTERNATIONS if problem.rules.projection == "alternating" else 3
        second: list[Record] = [step_record(problem, after_choice)]
        if problem.pool is None:
            second.append(sample_record(problem, state, 1))
        return [
            (opening_records(problem, state), 1),
            # usually one reduction remains
            ([replace(projection_record(problem, state), usual_calls=T)], reductions * T),
            ([verify_record(problem, state)], T),
            (second, T),
        ]


def _first_state(problem: GameProblem, state: GameState, results: Sequence[Any]) -> GameState:
    """The state after the first pass: equal dual weights for all rows, and in R^d the candidates for them."""
    state = replace(state, total=float(results[0]["weight"]))
    if problem.pool is None:
        # all rows have the same dual weight before the projection, and the same mean
        block: Block = results[1]
        ones = np.full((block.n_rows, problem.n_blocks), problem.rules.unit)
        state = _next_candidates(problem, state, block, ones, ones)
    return _begin_projection(problem, state, results[0])


def _continued_state(problem: GameProblem, state: GameState, results: Sequence[Any]) -> GameState:
    """The state of a continued game after its first pass, which sums what the last step of the former fit left out."""
    if problem.pool is None:
        block: Block = results[1]
        state = _next_candidates(problem, state, block, block.columns["dual"], block.columns["mean"])
    if problem.rules.projection == "alternating":
        return _projected_state(problem, replace(state, shifts=np.zeros((0, problem.n_blocks))), results)
    return _begin_projection(problem, state, results[0])


def _begin_projection(problem: GameProblem, state: GameState, sums: Mapping[str, np.ndarray]) -> GameState:
    """Start the projection of the new dual weights; the pass that wrote them has also made the first reduction."""
    K = problem.n_blocks
    if problem.rules.projection == "alternating":
        return replace(state, phase="project", shifts=np.zeros((0, K)))
    state = replace(state, phase="project", shifts=np.zeros((1, K)), found=np.zeros(K, bool))
    return _with_narrower_edges(problem, state, sums)


def _projected_state(problem: GameProblem, state: GameState, results: Sequence[Any]) -> GameState:
    """The state after a pass of the projection to feasible dual weights.

    Exact projections narrow the brackets of the multipliers; alternating ones add the multiplier of this alternation.
    """
    if problem.rules.projection == "exact":
        return _with_narrower_edges(problem, state, results[0])
    # the mean of y_i alpha_i, which Algorithm 3 subtracts to return to the hyperplane sum_i c_i y_i alpha_i = 0
    shift = results[0]["balance"][None] / state.total
    shifts = np.concatenate([state.shifts, shift])
    return replace(state, shifts=shifts, phase="verify" if len(shifts) == ALTERNATIONS else "project")


def _with_narrower_edges(problem: GameProblem, state: GameState, sums: Mapping[str, np.ndarray]) -> GameState:
    """The state with narrower edges around the multipliers, or in the next phase once all multipliers are exact."""
    reductions = state.pending.get("reductions", 0) + 1
    state = replace(state, pending={**state.pending, "reductions": reductions})
    return after_reduction(problem, state, sums, int(reductions), "verify")


def _verified_state(problem: GameProblem, state: GameState, results: Sequence[Any]) -> GameState:
    """The state with the features of highest potential as the kernel player's answer, and a lower bound on the value.

    Also sets the length of the next dual step.
    """
    sums, K, rules = results[0], problem.n_blocks, problem.rules
    # (candidates, parts, K): C and Q of the frequencies, sum_i c_i y_i alpha_i (cos, sin)(w.x_i); K more columns hold
    # the same under the mean dual weights if the pass was to check these
    all_features = sums["features"].transpose(1, 0, 2)
    features, potentials = all_features[..., :K], _potentials(problem, all_features[..., :K])
    # The highest distinct peaks in R^d, the blocks of highest potential of a pool: the worst kernel for the dual player
    # has the largest potential, and an equal mixture of a few is nearly as bad.
    if problem.pool is not None or state.candidates is None:
        groups = np.arange(len(potentials)) if problem.pool is None else problem.pool.groups
        # all features of a block have the block's potential, so that the first represents it
        _, first = np.unique(groups, return_index=True)
        best = np.argsort(-potentials[first], kind="stable")[: rules.per_round]
        chosen = np.concatenate([np.flatnonzero(groups == block) for block in best]).astype(np.int64)
    else:
        n_chosen = min(rules.per_round, rules.most - len(state.mass))
        chosen = distinct_peaks(state.candidates, potentials, n_chosen)
    # the value is at least that of any feasible dual weights against the worst candidate
    alpha, squares = float(sums["alpha"][:K].sum()), float(sums["squares"][:K].sum())
    lower = least_value(problem, alpha, squares, float(potentials.max()))
    if all_features.shape[2] > K:
        mean_potentials = _potentials(problem, all_features[..., K:])
        of_mean = float(sums["alpha"][K:].sum()), float(sums["squares"][K:].sum()), float(mean_potentials.max())
        lower = max(lower, least_value(problem, *of_mean))
    state = _regrown(problem, state, potentials, (sums["alpha"][:K], sums["squares"][:K]))
    size = _step_size(problem, state, features[chosen])
    # the multiplier of the next projection is probably within the largest move of a coordinate
    reach = rules.unit * (rules.rate if rules.rate is not None else 1.0) + 2.0 * np.abs(state.shifts).max(initial=0.0)
    # later rounds weigh more, since the dual weights of the first ones are far from the solution
    weight = size * (len(state.history) + 1)
    state = replace(
        state,
        phase="step",
        chosen=chosen,
        answer=features[chosen],
        step_size=size,
        step_weight=weight,
        lower=max(state.lower, lower),
        mean_dual=state.mean_dual + weight * np.array([alpha, squares]),
        pending={
            **state.pending,
            "potential": float(potentials[chosen].mean()),
            # F(alpha, lambda) for the features that the kernel player chose
            "response": alpha - 0.5 * (rules.ridge * squares + float(potentials[chosen].mean())),
            "at_zero": float(sums["bounds"][0]) / (state.total * problem.n_blocks),
            "at_bound": float(sums["bounds"][1]) / (state.total * problem.n_blocks),
        },
    )
    if state.mean_sums is not None:
        state = replace(state, mean_sums=state.mean_sums + weight * features)
    return replace(state, edges=first_edges(np.zeros(K), np.full(K, reach)))


def _potentials(problem: GameProblem, sums: np.ndarray) -> np.ndarray:
    """v of each candidate from its sums (m, parts, K); in a pool with blocks, the mean v of its block."""
    potentials = np.square(sums).sum(axis=(1, 2))
    if problem.pool is None:
        return potentials
    groups = problem.pool.groups
    return block_means(potentials, groups)[groups]


def _step_size(problem: GameProblem, state: GameState, answer: np.ndarray) -> float:
    """eta of this round: no coordinate moves by more than rate C / sqrt(t), or the step of theorem 4.1."""
    rules, t = problem.rules, len(state.history) + 1
    # theorem 4.1: D / (G sqrt(t)) for the hinge, with D the diameter of the box and G the largest gradient, and C' / t
    # for the squared hinge, whose dual is strongly concave
    n, K = state.total, problem.n_blocks
    if rules.rate is not None:
        # |1 - y f| <= 1 + |f|, and |phi| <= 1, so that |f| is at most the mean length of (C, Q) over the chosen
        # features
        steepest = 1.0 + float(np.sqrt(np.square(answer).sum(axis=1)).mean(axis=0).max())
        return rules.rate * rules.unit / (steepest * float(np.sqrt(t)))
    if rules.loss == "squared_hinge":
        return rules.curvature / t
    diameter, steepest = rules.C * np.sqrt(n * K), (1.0 + rules.C * n) * np.sqrt(n * K)
    return float(diameter / (steepest * np.sqrt(t)))


def _state_after_dual_step(problem: GameProblem, state: GameState, results: Sequence[Any]) -> GameState:
    """The state after the dual step: its features enter the dual measure; the gap, and the end or the next search."""
    sums = results[0]
    previous = state
    # the features of the round share its weight in lambda equally, and their sums enter w with the same weights
    answer, share = np.asarray(state.answer), state.step_weight / len(np.asarray(state.answer))
    if state.frequencies is None:
        mass, pull = state.mass.copy(), state.pull.copy()
        mass[state.chosen] += share
        pull[state.chosen] += share * answer
        state = replace(state, mass=mass, pull=pull)
    else:
        state = replace(
            state,
            frequencies=np.concatenate([state.frequencies, np.asarray(state.candidates)[state.chosen]]),
            mass=np.concatenate([state.mass, np.full(len(answer), share)]),
            pull=np.concatenate([state.pull, share * answer]),
        )
    state = replace(state, played=state.played + state.step_weight)
    state, upper = _best_machine(problem, state, sums["losses"])
    state = _state_with_history(problem, state, sums, upper)
    if why := _why_to_stop(problem, state):
        return replace(state, phase="done", message=why)
    if problem.pool is None:
        # the pass has stepped the rows' columns; the sampled rows hold the values before, and take the same step here
        block: Block = results[1]
        signs = problem.targets(block)[0]
        alpha = feasible_of(problem, previous)(block.columns["dual"], signs)
        step = dual_step(problem, previous)
        values, _ = step(block.X, alpha, signs)
        mean = (1.0 - step.share) * block.columns["mean"] + step.share * alpha
        state = _next_candidates(problem, state, block, values, mean)
    return _begin_projection(problem, state, sums)


def _best_machine(problem: GameProblem, state: GameState, losses: np.ndarray) -> tuple[GameState, float]:
    """The best machine that the pass tried, and its primal value, an upper bound on max F(., lambda)."""
    trials = trials_of(state)
    # |w|^2 of f = sum_t sqrt(lambda_t) u_t.phi_t, whose coefficients w_t = sqrt(lambda_t) u_t are the mean response
    lengths = np.square(state.coefficients).sum(axis=(1, 2))
    used = lengths > 0.0
    norm = float((lengths[used] / state.weights[used]).sum())
    # for each scale the best intercept of each dual block, then the best scale: |w|^2 / 2 + C sum of losses
    best = losses.argmin(axis=2)
    values = 0.5 * trials.scales**2 * norm + problem.rules.C * losses.min(axis=2).sum(axis=0)
    s = int(values.argmin())
    intercepts, spread = next_intercepts(state, np.take_along_axis(trials.intercepts, best[:, s, None], axis=1)[:, 0])
    pending = {**state.pending, "margin": 1.0 / max(float(trials.scales[s] * np.sqrt(norm)), 1e-300)}
    scale = float(trials.scales[s])
    return replace(state, scale=scale, intercepts=intercepts, spread=spread, pending=pending), float(values[s])


def _state_with_history(
    problem: GameProblem, state: GameState, sums: Mapping[str, np.ndarray], upper: float
) -> GameState:
    """The state with this round's entry in the history."""
    lower = state.lower
    if state.mean_sums is not None:
        # the sums of a pool are linear in the dual weights, so that the mean weights bound the value without a pass
        alpha, squares = state.mean_dual / state.played
        potentials = _potentials(problem, state.mean_sums / state.played)
        lower = max(lower, least_value(problem, float(alpha), float(squares), float(potentials.max())))
    errors, held_out_weight = sums["errors"], float(sums["errors"][2])
    entry = {
        **round_entry(state.history, upper, lower),
        "support": float(np.count_nonzero(state.mass)),
        "error": float(errors[0]) / state.total,
        "step": state.step_size,
        "weight": state.step_weight,
        "gradient": float(sums["gradient"][0]),
        "sample_rows": float(state.sample_rows),
        **state.pending,
    }
    if held_out_weight > 0.0:
        entry["held_out_error"] = float(errors[1]) / held_out_weight
        entry["held_out_loss"] = float(sums["held"]) / held_out_weight
    return replace(state, history=(*state.history, entry), lower=lower, pending={})


def _why_to_stop(problem: GameProblem, state: GameState) -> str:
    """Why the game ends, and what to change; empty if another round follows.

    It ends at the gap `tol`, after `patience` rounds without a lower loss on the held-out rows, in R^d once it has all
    its frequencies, and after `rounds` rounds.
    """
    rules, last, gap = problem.rules, state.history[-1], standing(state.history)
    held_out = [entry.get("held_out_loss", np.inf) for entry in state.history]
    if rules.tol is not None and last["relative_gap"] <= rules.tol:
        return f"reached the target gap after {len(state.history)} rounds: {gap}"
    if rules.patience is not None and rounds_without_gain(held_out) >= rules.patience:
        return f"no gain on the rows held out for {rules.patience} rounds: {gap}; a larger patience plays on"
    if problem.pool is None and len(state.mass) >= rules.most:
        return f"all {rules.most} frequencies are found: {gap}; a larger n_features plays on"
    if len(state.history) >= rules.rounds:
        return f"all {rules.rounds} rounds are played: {gap}; more rounds close it further"
    return ""


def machine_coefficients(state: GameState) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (K, n_features) on features scaled by sqrt(lambda), and intercepts (K,), of the bounding machine."""
    used = state.mass > 0.0
    # f = sum_t w_t.phi_t = sum_t coef_t.(sqrt(lambda_t) phi_t)
    coef = state.scale * state.coefficients[used] / np.sqrt(state.weights[used])[:, None, None]
    return coef.transpose(2, 1, 0).reshape(coef.shape[2], -1), state.intercepts


def dual_measure(problem: GameProblem, state: GameState) -> tuple[FeatureMap, np.ndarray]:
    """The final feature map, with amplitudes sqrt(lambda), and lambda of its frequencies."""
    used = np.flatnonzero(state.mass > 0.0)
    weights = state.weights[used]
    if problem.pool is not None:
        return problem.pool.take(used, np.sqrt(weights)), weights
    candidates = candidate_map(problem, np.asarray(state.frequencies)[used])
    return replace(candidates, amplitudes=np.sqrt(weights)), weights


def _next_candidates(
    problem: GameProblem, state: GameState, block: Block, values: np.ndarray, mean: np.ndarray
) -> GameState:
    """The state with the candidates of the next round: peaks of the potential on sampled rows.

    Parameters
    ----------
    problem : GameProblem
    state : GameState
    block : Block
        The r sampled rows.
    values : ndarray of shape (r, K)
        Their dual weights, which are not yet projected: the projection here is on the sample alone, as its multipliers
        for all rows come from later passes.
    mean : ndarray of shape (r, K)
        Their mean dual weights over the rounds, which have peaks of their own where the game asks for them.
    """
    signs, weight, _ = problem.targets(block)
    # the sample was drawn by the rows' own weights, so that only the class factors remain to be applied
    factor = (weight / block.weights)[:, None]
    alpha, _ = project_dual(values, signs, factor[:, 0], problem.upper)
    candidates, promised = _peaks(problem, block, signs * alpha * factor, len(state.history))
    if checks_mean(problem, state):
        others, _ = _peaks(problem, block, signs * mean * factor, len(state.history))
        candidates = np.concatenate([candidates, others])
        # potentials of other weights cannot be compared, so that these candidates are placed last
        promised = np.concatenate([promised, np.full(len(others), -1.0)])
    return replace(state, candidates=candidates, promised=promised)


def _peaks(problem: GameProblem, block: Block, S: np.ndarray, round: int) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies and their pair potentials on the sample, highest first."""
    space, totals, squares = searched_space(problem), np.abs(S).sum(axis=0), np.square(S).sum(axis=0)
    # v <= sum_k (sum_i |S_ik|)^2, so that no potential of S / norm is above 1
    norm = max(float(np.sqrt(np.square(totals).sum())), np.finfo(np.float64).tiny)
    X = scale_rows(block.X, space.scaler, problem.dtype)
    # `further_seed` without its modulus, by which seeds near 2^31 would search from other starts than they have done
    seed = problem.seed + BETWEEN_ROUNDS * (round + 1)
    points, potentials = space.search(X, S / norm, problem.n_candidates, seed)
    return points, pair_potentials(potentials, totals / norm, squares / norm**2)


def _regrown(
    problem: GameProblem, state: GameState, potentials: np.ndarray, totals: tuple[np.ndarray, np.ndarray]
) -> GameState:
    """The state with a larger sample for the next search, if the last peaks are much lower on all rows."""
    if state.promised is None:
        return state
    verified = pair_potentials(potentials, *totals)
    best = np.argsort(-state.promised, kind="stable")[: max(10, problem.rules.per_round)]
    rows = grown_sample(state.sample_rows, state.promised[best], verified[best], most=problem.most_rows)
    return replace(state, sample_rows=max(rows, state.sample_rows))

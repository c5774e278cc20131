"""Line searches take the longest trial step that Armijo's inequality allows, each search as if it were alone."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.solvers.line_search import SHORTEST, backtracked, falling_step, falls_enough, trial_lengths


def quadratic(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A positive definite matrix, a point, and a direction in which x'Ax/2 falls, up to a thousand times too long."""
    generator = np.random.default_rng(seed)
    root, x = generator.normal(size=(4, 6)), generator.normal(size=4)
    A = root @ root.T
    return A, x, -(10.0 ** generator.uniform(-2.0, 3.0)) * (A @ x)


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_trial_step_with_armijos_inequality_is_found(seed: int) -> None:
    A, x, direction = quadratic(seed)
    start, slope, lengths = x @ A @ x / 2, x @ A @ direction, trial_lengths(1.0)
    after = [(x + t * direction) @ A @ (x + t * direction) / 2 for t in (0.5**k for k in range(9))]
    allowed = [0.5**k for k in range(9) if after[k] <= start + 1e-4 * 0.5**k * slope]
    assert backtracked(lengths, np.array(after), start, slope) == (allowed[0] if allowed else 0.5**9)


@pytest.mark.parametrize("seed", range(20))
def test_a_search_length_by_length_takes_the_longest_step_with_armijos_inequality(seed: int) -> None:
    A, x, direction = quadratic(seed)
    start, slope, seen = x @ A @ x / 2, x @ A @ direction, []

    def evaluate(length: float) -> tuple[float, np.ndarray]:
        seen.append(length)
        after = x + length * direction
        return after @ A @ after / 2, after

    objective, after = falling_step(evaluate, start, slope) or (np.inf, x)
    after_all = [(x + t * direction) @ A @ (x + t * direction) / 2 for t in (0.5**k for k in range(34))]
    first = next(k for k in range(34) if after_all[k] <= start + 1e-4 * 0.5**k * slope)
    assert objective == after_all[first]
    np.testing.assert_array_equal(after, x + 0.5**first * direction)
    # no step is evaluated twice, nor one beyond the accepted one
    assert seen == [0.5**k for k in range(first + 1)]


def test_a_search_along_which_nothing_falls_ends_at_the_shortest_step() -> None:
    seen: list[float] = []
    assert falling_step(lambda length: (2.0, seen.append(length)), 1.0, -1.0) is None
    assert seen[-1] >= SHORTEST > seen[-1] / 2


def test_searches_side_by_side_find_what_each_finds_alone() -> None:
    problems = [quadratic(seed) for seed in range(8)]
    lengths = trial_lengths(0.5 ** np.arange(8.0), 4)
    points = [x + t[:, None] * d for (_, x, d), t in zip(problems, lengths, strict=True)]
    after = np.array([((z @ A) * z).sum(axis=1) / 2 for (A, _, _), z in zip(problems, points, strict=True)])
    start = np.array([x @ A @ x / 2 for A, x, _ in problems])
    slope = np.array([x @ A @ d for A, x, d in problems])
    alone = [backtracked(*one) for one in zip(lengths, after, start, slope, strict=True)]
    np.testing.assert_array_equal(backtracked(lengths, after, start, slope), alone)


def test_passes_go_on_halving_until_a_step_is_taken_or_none_is_left() -> None:
    for falls, end in ((True, 2.0**-20), (False, 0.0)):
        length = np.ones(1)
        for _ in range(20):
            lengths = trial_lengths(length)
            after = np.where(falls & (lengths <= end), 1.0 - lengths, 2.0)
            length = backtracked(lengths, after, np.ones(1), -np.ones(1))
            if length == lengths[0, 0] or length < SHORTEST:
                break
        assert length == end if falls else length < SHORTEST


def test_a_step_to_what_is_not_finite_is_never_taken() -> None:
    lengths = trial_lengths(np.ones(2), 3)
    after = np.array([[np.inf, np.nan, 5.0], [7.0, np.nan, np.inf]])
    # an objective that is not known yet is infinite: any number is lower
    np.testing.assert_array_equal(backtracked(lengths, after, np.full(2, np.inf), np.zeros(2), 1e-12), [0.25, 1.0])


def test_rounding_is_relative_to_the_objective_before_the_step() -> None:
    assert falls_enough(100.0 + 1e-11, 100.0, -1e-9, 1e-12)
    assert not falls_enough(100.0 + 1e-11, 100.0, -1e-9)
    assert not falls_enough(100.0 + 1e-9, 100.0, -1e-9, 1e-12)

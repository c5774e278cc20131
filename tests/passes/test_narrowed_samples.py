"""Samples whose blocks leave late rows aside: the same rows as of a sample of everything, and far fewer on the way."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dkl.data.sources.in_memory import ArraySource
from dkl.passes.loop import reduction, run_pass
from dkl.protocols import sampling
from dkl.protocols.block import Block
from dkl.protocols.records import RowSample
from dkl.protocols.sampling import narrowed, sample_keys, smallest_keys, sure_key

N_ROWS, ROWS_A_BLOCK = 20_000, 1_000
RECORD = RowSample("sample", 300, seed=4, round=2)


def source_of(weight: np.ndarray | None = None) -> ArraySource:
    X = np.arange(2.0 * N_ROWS).reshape(N_ROWS, 2)
    return ArraySource(X, np.arange(N_ROWS) % 3, weight, n_classes=3, rows_a_block=ROWS_A_BLOCK)


def first_rows(weight: np.ndarray | None = None) -> np.ndarray:
    whole = Block(0, np.arange(2.0 * N_ROWS).reshape(N_ROWS, 2), None, weight, np.arange(N_ROWS))
    return smallest_keys(whole, RECORD.k, RECORD.seed, RECORD.round).X


@pytest.mark.parametrize(("k", "n"), [(1, 1_000), (10, 1_000), (1_000, 10_000), (10_000, 10**9)])
def test_fewer_rows_than_asked_for_stay_below_a_sure_key_once_in_1e15(k: int, n: int) -> None:
    share = -np.expm1(-sure_key(k, n))
    assert stats.binom.cdf(k - 1, n, share) <= 1e-15
    assert n * share < k + 12.0 * np.sqrt(k) + 73.0


def test_a_sample_of_most_rows_has_no_sure_key() -> None:
    assert sure_key(600, 1_000) == sure_key(5, 0) == np.inf


def test_a_narrowed_sample_is_the_sample() -> None:
    found = run_pass(source_of(), [RECORD]).results[0]
    np.testing.assert_array_equal(found.X, first_rows())


def test_a_block_hands_on_its_share() -> None:
    source = source_of()
    reduced = reduction(narrowed(RECORD, source))
    rows = [reduced.of_block(source.ticket(index), None).n_rows for index in range(source.n_blocks)]
    assert RECORD.k <= sum(rows) < RECORD.k + 12 * np.sqrt(RECORD.k) + 72 + 5 * np.sqrt(RECORD.k)


def test_weighted_rows_are_all_looked_at() -> None:
    weight = np.random.default_rng(0).uniform(0.001, 0.01, N_ROWS)
    source = source_of(weight)
    assert narrowed(RECORD, source) == RECORD
    np.testing.assert_array_equal(run_pass(source, [RECORD]).results[0].X, first_rows(weight))


def test_a_short_sample_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    key = np.sort(sample_keys(np.arange(N_ROWS), None, RECORD.seed, RECORD.round))[RECORD.k - 2]
    monkeypatch.setattr(sampling, "sure_key", lambda k, n_rows: float(key))
    events: list[object] = []
    found = run_pass(source_of(), [RECORD], publish=events.append)
    np.testing.assert_array_equal(found.results[0].X, first_rows())
    once = 1 + N_ROWS // ROWS_A_BLOCK + 1
    assert len(events) == 2 * once

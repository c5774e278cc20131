"""The pass for the class sums of all candidates: its record, and the drivers of alignment and posterior by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkl.features.families import ArcCosine, Cauchy, Coordinates, Gaussian, Laplacian, Matern
from dkl.features.feature_map import FeatureMap
from dkl.methods import potential_sums
from dkl.methods.potential_sums import AlignmentDriver, PosteriorDriver, PotentialProblem, potential_record
from dkl.protocols.block import Block
from tests.definitions import selection as definition

FAMILIES = [
    Gaussian(2.0),
    Gaussian(2.0, sampling="orthogonal"),
    Gaussian(2.0, sampling="structured"),
    Gaussian(2.0, pairing="phase"),
    Laplacian(3.0),
    Cauchy(3.0),
    Matern(1.5, 2.0),
    ArcCosine(0),
    ArcCosine(1),
    ArcCosine(2),
    Coordinates(),
]


def features_of(candidates: FeatureMap, X: np.ndarray) -> np.ndarray:
    """(parts, n, m), straight from the formula of each activation."""
    angles = X @ candidates.projection.dense().astype(np.float64).T
    if candidates.activation == "cos-sin":
        return np.stack([np.cos(angles), np.sin(angles)])
    if candidates.activation == "cos":
        return np.cos(angles + candidates.phases)[None]
    if candidates.activation == "identity":
        return angles[None]
    return (np.heaviside(angles, 0.0) * angles**candidates.order)[None]


def play(driver: Any, problem: PotentialProblem, blocks: Sequence[Block]) -> Any:
    """Run a driver to its end over blocks in memory; exactly one pass."""
    state = driver.init(problem)
    (record,) = driver.request(problem, state)
    pieces = [record.function(block, record.operands) for block in blocks]
    sums = {name: sum(piece[name] for piece in pieces) for name in record.accumulators}
    assert {name: value.shape for name, value in sums.items()} == {n: a.shape for n, a in record.accumulators.items()}
    state = driver.step(problem, state, [sums])
    assert driver.request(problem, state) is None
    return state


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    codes = np.concatenate([[0, 1, 2], rng.integers(0, 3, 15)])
    return rng.standard_normal((18, 5)), codes, rng.integers(1, 4, 18).astype(float)


# neither positive semidefinite nor 1 on the diagonal
SIMILARITY = np.array([[1.0, -0.3, 0.8], [-0.3, 0.2, -1.0], [0.8, -1.0, -0.5]])


def blocks_of(X: np.ndarray, y: np.ndarray, weight: np.ndarray | None) -> list[Block]:
    row_id = np.arange(len(X))
    parts = np.array_split(row_id, 3)
    return [Block(i, X[p], y[p], None if weight is None else weight[p], p) for i, p in enumerate(parts)]


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize(
    ("diagonal", "center", "S"),
    [(True, False, None), (False, True, None), (True, True, SIMILARITY), (False, False, SIMILARITY)],
    ids=["alike or not", "centred, without the diagonal", "centred similarity", "similarity without the diagonal"],
)
def test_alignments_are_their_definition_for_every_family(
    family: Any, diagonal: bool, center: bool, S: np.ndarray | None, rows: Any
) -> None:
    X, codes, weights = rows
    candidates = family.draw(7, 5, 0, np.float64)
    problem = PotentialProblem(candidates, 3, dtype="float64", center=center, similarity=S, diagonal=diagonal)
    state = play(AlignmentDriver(), problem, blocks_of(X, codes, weights))
    features = features_of(candidates, X)
    expected = definition.class_alignments(features, codes, weights, center=center, S=S)
    if not diagonal and candidates.columns_a_frequency == 1:
        expected -= definition.class_diagonal(features, codes, weights, center=center, S=S)
    np.testing.assert_allclose(state.values, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    assert state.total == weights.sum()


@pytest.mark.parametrize("family", [Gaussian(2.0), Gaussian(2.0, pairing="phase"), ArcCosine(1)], ids=repr)
@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("n_targets", [1, 2])
def test_regression_alignments_are_their_definition(family: Any, diagonal: bool, n_targets: int, rows: Any) -> None:
    X, _, weights = rows
    y = np.random.default_rng(1).standard_normal((18, n_targets)) - 4.0
    candidates = family.draw(7, 5, 0, np.float64)
    problem = PotentialProblem(candidates, None, n_outputs=n_targets, dtype="float64", diagonal=diagonal)
    state = play(AlignmentDriver(), problem, blocks_of(X, y[:, 0] if n_targets == 1 else y, weights))
    features = features_of(candidates, X)
    expected = definition.regression_alignments(features, y, weights)
    if not diagonal and candidates.columns_a_frequency == 1:
        expected -= definition.regression_diagonal(features, y, weights)
    np.testing.assert_allclose(state.values, expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())
    assert state.total == weights.sum()


def test_losses_are_their_definition(rows: Any) -> None:
    X, codes, _ = rows
    candidates = Gaussian(2.0).draw(7, 5, 0, np.float64)
    problem = PotentialProblem(candidates, 3, dtype="float64")
    state = play(PosteriorDriver(), problem, blocks_of(X, codes, None))
    expected = definition.pair_losses(X, candidates.projection.dense(), codes)
    np.testing.assert_allclose(state.values, expected, rtol=1e-12)
    assert state.total == 18.0


@pytest.mark.parametrize("driver", [AlignmentDriver(), PosteriorDriver()], ids=["alignment", "posterior"])
def test_a_class_of_weight_zero_is_not_there_and_one_of_two_is_there_twice(driver: Any, rows: Any) -> None:
    X, codes, _ = rows
    candidates = Gaussian(2.0).draw(7, 5, 0, np.float64)
    problem = PotentialProblem(candidates, 3, dtype="float64")
    weighted = play(driver, replace(problem, class_weight=np.array([2.0, 0.0, 1.0])), blocks_of(X, codes, None))
    repeats = np.array([2, 0, 1])[codes]
    repeated = play(driver, problem, blocks_of(np.repeat(X, repeats, axis=0), np.repeat(codes, repeats), None))
    np.testing.assert_allclose(weighted.values, repeated.values, rtol=1e-10, atol=1e-10)
    assert weighted.total == repeated.total


def test_single_precision_errs_by_little(rows: Any) -> None:
    X, codes, weights = rows
    candidates = Gaussian(2.0).draw(50, 5, 0)
    exact = play(AlignmentDriver(), PotentialProblem(candidates, 3, dtype="float64"), blocks_of(X, codes, weights))
    single = play(AlignmentDriver(), PotentialProblem(candidates, 3), blocks_of(X, codes, weights))
    np.testing.assert_allclose(single.values, exact.values, rtol=1e-4, atol=1e-5 * exact.values.max())


def test_the_plan_holds_the_record_of_the_one_pass(rows: Any) -> None:
    problem = PotentialProblem(ArcCosine(1).draw(100, 5, 0), 4, diagonal=False)
    (((planned,), calls),) = AlignmentDriver().plan(problem)
    assert calls == 1
    assert planned.accumulators == potential_record(problem).accumulators
    assert planned.result_bytes == 8 * (100 * 4 + 4 + 100 * 4)
    product = 2 * 1_000 * 5 * 100
    assert planned.cost(1_000, 5).flops > product


def test_sums_of_many_classes_are_cut_into_accumulators_of_64_mib(rows: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PotentialProblem(Gaussian(1.0).draw(20_000, 5, 0), 500)
    (((planned,), _),) = AlignmentDriver().plan(problem)
    assert max(accumulator.nbytes for accumulator in planned.accumulators.values()) <= 64 << 20
    assert planned.result_bytes == 8 * (2 * 20_000 * 500 + 500)
    X, codes, weights = rows
    small = PotentialProblem(ArcCosine(1).draw(7, 5, 0, np.float64), 3, dtype="float64", diagonal=False)
    whole = play(AlignmentDriver(), small, blocks_of(X, codes, weights))
    monkeypatch.setattr(potential_sums, "LARGEST_ACCUMULATOR", 2 * 8 * 7)
    assert len(potential_record(small).accumulators) == 5
    np.testing.assert_array_equal(play(AlignmentDriver(), small, blocks_of(X, codes, weights)).values, whole.values)

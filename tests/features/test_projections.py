"""Projections: the matrix that they stand for, what is formed of it, and how they are joined."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dkl.features.families import ArcCosine, Coordinates, Family, Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import (
    ColumnProjection,
    DenseProjection,
    Projection,
    SparseProjection,
    StructuredProjection,
    formed,
    padded_width,
    walsh_hadamard,
)
from tests.kernels.cases import scaler


def hadamard(length: int) -> np.ndarray:
    return np.array([[1.0 - 2.0 * ((i & j).bit_count() % 2) for j in range(length)] for i in range(length)])


def structured(m: int = 300, d: int = 70, dtype: type = np.float64) -> StructuredProjection:
    projection = Gaussian(2.0, "structured").draw(m, d, 3, dtype).projection
    assert isinstance(projection, StructuredProjection)
    return projection


def test_transforms_are_products_with_hadamard_matrices() -> None:
    for length in (1, 2, 8, 64):
        rows = np.random.default_rng(0).standard_normal((3, length))
        np.testing.assert_allclose(walsh_hadamard(rows), rows @ hadamard(length), atol=1e-12)


@pytest.mark.parametrize(("d", "padded"), [(1, 256), (256, 256), (257, 512), (784, 1024), (1024, 1024)])
def test_rows_are_padded_to_a_power_of_two(d: int, padded: int) -> None:
    assert padded_width(d) == padded


def test_the_matrix_is_the_product_of_its_factors() -> None:
    projection = structured()
    H, p = hadamard(256), 256
    blocks = [H @ np.diag(s[0]) @ H @ np.diag(s[1]) @ H @ np.diag(s[2]) for s in projection.signs.astype(float)]
    expected = projection.radii[:, None] * (np.vstack(blocks)[:300] / p**1.5)
    np.testing.assert_allclose(projection.dense(), expected[:, :70], atol=1e-12)
    np.testing.assert_array_equal(np.asarray(projection), projection.dense())
    assert np.asarray(projection, dtype=np.float32).dtype == np.float32


def test_rows_are_as_long_as_their_radii_say() -> None:
    full = structured(256, 256)
    np.testing.assert_allclose(np.linalg.norm(full.dense(), axis=1), full.radii, rtol=1e-12)


def test_it_is_indexed_like_the_matrix() -> None:
    projection, W = structured(), structured().dense()
    assert projection.shape == W.shape
    assert len(projection) == len(W)
    np.testing.assert_array_equal(projection[7], W[7])
    np.testing.assert_array_equal(projection[250:], W[250:])
    np.testing.assert_array_equal(projection[np.array([3, 299, 3])], W[[3, 299, 3]])


def test_few_chosen_rows_are_formed_and_many_stay_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    projection, index = structured(), np.array([299, 2, 2, 64])
    few = projection.take(index)
    assert isinstance(few, DenseProjection)
    np.testing.assert_array_equal(few.matrix, projection.dense()[index])
    monkeypatch.setattr("dkl.features.projections.FORMED_BYTES", 0)
    many = projection.take(index)
    assert isinstance(many, StructuredProjection)
    np.testing.assert_array_equal(many.dense(), projection.dense()[index])
    np.testing.assert_array_equal(many.take(np.array([3, 0])).dense(), projection.dense()[index][[3, 0]])


def test_a_pool_of_twenty_thousand_candidates_is_a_few_signs() -> None:
    assert structured(20_480, 784).nbytes < 20_480 * 784 * 4 / 200


def test_a_boolean_choice_is_a_choice() -> None:
    projection = structured()
    chosen = np.arange(300) % 50 == 0
    np.testing.assert_array_equal(projection.take(chosen).dense(), projection.dense()[chosen])


def test_columns_are_rows_of_the_identity() -> None:
    projection = ColumnProjection(np.array([2, 0]), 3)
    np.testing.assert_array_equal(projection.dense(), [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(projection.take(np.array([1])).dense(), [[1, 0, 0]])


def few_entries() -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    supports = np.array([[j in (i % 5, 3) for j in range(5)] for i in range(6)])
    supports[4], supports[5] = True, False
    return rows, supports


def test_sparse_frequencies_keep_their_supports() -> None:
    rows, supports = few_entries()
    projection = SparseProjection.from_rows(rows, supports)
    np.testing.assert_array_equal(projection.dense(), np.where(supports, rows, 0))
    assert projection.dense().dtype == np.float32
    assert isinstance(formed(projection), sparse.csr_array)
    np.testing.assert_array_equal(np.diff(projection.matrix.indptr), supports.sum(axis=1))
    index = np.array([4, 1, 1, 5])
    np.testing.assert_array_equal(projection.take(index).dense(), projection.dense()[index])
    np.testing.assert_array_equal(projection.take(supports[:, 0]).dense(), projection.dense()[supports[:, 0]])
    assert projection.nbytes < 6 * supports.sum() * 4


def test_an_entry_that_is_zero_stays_in_its_support() -> None:
    projection = SparseProjection.from_rows(np.zeros((1, 3)), np.array([[True, False, True]]))
    np.testing.assert_array_equal(projection.matrix.indices, [0, 2])
    assert SparseProjection.from_rows(np.zeros((1, 3))).matrix.nnz == 0


def test_repeated_entries_of_a_matrix_add_up_and_the_matrix_stays_as_it_is() -> None:
    repeated = sparse.csr_array((np.array([1.0, 2.0, 4.0]), np.array([1, 1, 0]), np.array([0, 3])), shape=(1, 2))
    np.testing.assert_array_equal(SparseProjection.from_matrix(repeated).dense(), [[4.0, 3.0]])
    assert repeated.nnz == 3


def test_supports_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"frequencies have shape \(2, 3\) and supports \(3, 2\)"):
        SparseProjection.from_rows(np.ones((2, 3)), np.ones((3, 2)))


PROJECTIONS: dict[str, Projection] = {
    "dense": DenseProjection(np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)),
    "sparse": SparseProjection.from_rows(*few_entries()),
    "columns": ColumnProjection(np.array([2, 0]), 5),
    "structured": structured(7, 5),
}


@pytest.mark.parametrize("second", PROJECTIONS)
@pytest.mark.parametrize("first", PROJECTIONS)
def test_joined_frequencies_are_those_of_one_then_the_other(first: str, second: str) -> None:
    one, other = PROJECTIONS[first], PROJECTIONS[second]
    both = one.joined(other)
    np.testing.assert_array_equal(both.dense(), np.concatenate([one.dense(), other.dense()]))
    if "sparse" in (first, second):
        assert isinstance(both, SparseProjection)
    assert isinstance(both, ColumnProjection) == (first == second == "columns")


@pytest.mark.parametrize("family", [Gaussian(1.0), Gaussian(1.0, pairing="phase"), ArcCosine(2), Coordinates()])
def test_joined_maps_have_the_features_of_both(family: Family) -> None:
    first, second = family.draw(3, 4, 0), family.draw(2, 4, 1)
    both = first.joined(second)
    assert both.n_frequencies == 5
    for part, index in ((first, np.arange(3)), (second, np.arange(3, 5))):
        taken = both.take(index)
        np.testing.assert_array_equal(taken.projection.dense(), part.projection.dense())
        np.testing.assert_array_equal(taken.amplitudes, part.amplitudes)
        assert (taken.activation, taken.order) == (part.activation, part.order)
        np.testing.assert_array_equal(taken.phases, part.phases)  # type: ignore[arg-type]


def drawn(**parameters: object) -> FeatureMap:
    return FeatureMap("cos-sin", DenseProjection(np.ones((2, 4))), np.ones(2), **parameters)  # type: ignore[arg-type]


def test_maps_behind_equal_scalers_are_joined() -> None:
    assert drawn(scaler=scaler("standard", 4)).joined(drawn(scaler=scaler("standard", 4))).n_frequencies == 4


@pytest.mark.parametrize(
    "other",
    [
        ArcCosine(1).draw(2, 4, 0),
        Gaussian(1.0).draw(2, 3, 0),
        Gaussian(1.0, pairing="phase").draw(2, 4, 0),
        drawn(scaler=scaler("standard", 4)),
    ],
)
def test_maps_of_two_kinds_are_not_joined(other: FeatureMap) -> None:
    with pytest.raises(ValueError, match="both need the same activation, order, columns and scaler"):
        drawn().joined(other)

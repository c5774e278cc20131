"""Structured projections: the matrix that they stand for, and what is formed of it."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.features.families import Gaussian
from dkl.features.projections import (
    ColumnProjection,
    DenseProjection,
    StructuredProjection,
    padded_width,
    walsh_hadamard,
)


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

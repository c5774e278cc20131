"""Rows of every kind are answered alike at predict and transform: none at all, other layouts, other dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import dkl

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = np.array(["no", "yes"] * 20)
KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "array": lambda rows: rows,
    "frame": lambda rows: pd.DataFrame(rows, columns=list("abc")),
    "sparse": sparse.csr_array,
    "Dask array": lambda rows: da.from_array(rows, chunks=(10, 3)),
    "Dask frame": lambda rows: dd.from_pandas(pd.DataFrame(rows, columns=list("abc")), npartitions=1),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def machine() -> Any:
    features = dkl.RandomFeatures(dkl.Gaussian(2.0), n_features=8, random_state=0)
    return dkl.KernelClassifier(features, epochs=1, random_state=0).fit(X, Y)


@pytest.mark.filterwarnings("ignore:X has feature names")
@every_kind
def test_no_rows_have_no_predictions_and_no_features(machine: Any, kind: str) -> None:
    rows = KINDS[kind](X[:0])
    for found, shape in (
        (machine.predict(rows), (0,)),
        (machine.decision_function(rows), (0,)),
        (machine.features_.transform(rows), (0, 8)),
    ):
        assert np.asarray(found).shape == shape
    with pytest.raises(ValueError, match="no rows to score"):
        machine.score(rows, Y[:0])


@pytest.mark.filterwarnings("ignore:X has feature names")
@every_kind
def test_no_rows_are_refused_at_fit_by_one_message(kind: str) -> None:
    learner = dkl.RandomFeatures(n_features=8)
    with pytest.raises(ValueError, match=r"0 sample\(s\) .* X has no rows"):
        learner.fit(KINDS[kind](X[:0]))


LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "big endian": lambda rows: rows.astype(">f8"),
    "Fortran order": np.asfortranarray,
    "every second column": lambda rows: np.repeat(rows, 2, axis=1)[:, ::2],
    "a list of lists": lambda rows: rows.tolist(),
    "objects": lambda rows: rows.astype(object),
    "a matrix": np.asmatrix,
    "long double": lambda rows: rows.astype(np.longdouble),
    "a tensor": lambda rows: pytest.importorskip("torch").tensor(rows),
}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_changes_no_bit_of_fit_and_predict(machine: Any, layout: str) -> None:
    given = LAYOUTS[layout](X)
    expected = machine.decision_function(X)
    np.testing.assert_array_equal(machine.decision_function(given), expected)
    features = dkl.RandomFeatures(dkl.Gaussian(2.0), n_features=8, random_state=0)
    again = dkl.KernelClassifier(features, epochs=1, random_state=0).fit(given, Y)
    np.testing.assert_array_equal(again.decision_function(X), expected)


def test_large_whole_labels_of_objects_stay_apart() -> None:
    labels = np.array([2**60, 2**60 + 1] * 20, dtype=object)
    assert dkl.KernelClassifier(dkl.RandomFeatures(n_features=4), epochs=1).fit(X, labels).classes_.tolist() == [
        2**60,
        2**60 + 1,
    ]


def test_one_column_of_weights_is_weights_in_memory_and_in_dask() -> None:
    weights = np.arange(1.0, 41.0)
    learner = dkl.AlignedFeatures(dkl.Gaussian(2.0), n_candidates=8, n_features=4, random_state=0)
    expected = learner.fit(X, Y, weights).transform(X)
    np.testing.assert_array_equal(learner.fit(X, Y, weights[:, None]).transform(X), expected)
    lazily = learner.fit(da.from_array(X, chunks=-1), Y, weights[:, None])
    np.testing.assert_array_equal(lazily.transform(X), expected)

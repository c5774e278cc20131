"""Models and stores whose tables were encoded separately: stores answer as their frames do, or are refused by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.ingest.encoding import learn_encoding
from dkl.encodings.categories import rows_like_fit
from dkl.errors import TableDifferenceWarning

N = 300


def table(seed: int, names: str = "abc", unit: str = "kg", **changed: Any) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows with gaps in a number and a date, whose means differ by seed; and their labels."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(size=N) + seed, "job": rng.choice(list(names), N)})
    frame["when"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, N) + 300 * seed, "D")
    frame["weight"] = [f"{value:.1f} {unit}" for value in rng.uniform(1, 99, N)]
    labels = np.where(frame["x"] + (frame["job"] == "a") > seed, "u", "v")
    frame.loc[::7, "x"] = np.nan
    frame.loc[::5, "when"] = pd.NaT
    return frame.assign(**changed), labels


def model_on(folder: Path) -> dkl.KernelClassifier:
    ds = dkl.create_dataset(folder / "fit.zarr", *table(0))
    return dkl.KernelClassifier("random", n_features=50, solver="newton", random_state=0, progress=False).fit(ds)


def test_a_store_with_means_of_its_own_answers_as_its_frame(tmp_path: Path) -> None:
    model, (frame, labels) = model_on(tmp_path), table(2)
    store = dkl.create_dataset(tmp_path / "other.zarr", frame, labels)
    # missing values of the store are filled with its own means
    assert store.encoding != model.encoding_
    expected = model.decision_function(frame)
    np.testing.assert_array_equal(model.decision_function(store).compute(), expected)
    assert model.score(store) == model.score(frame, labels)
    strengths = [dkl.explain.importance(model, rows).strengths for rows in (store, frame)]
    np.testing.assert_array_equal(*strengths)


def test_sparse_rows_are_filled_as_dense_ones_are() -> None:
    (ours, _), (theirs, labels) = table(0), table(2, x=np.where(np.arange(N) % 3, 0.0, np.nan))
    fitted = learn_encoding([ours], layout="dense")
    dense = fitted.transform(theirs)
    own = learn_encoding([theirs], layout="sparse")
    rows = as_dataset(own.transform(theirs), labels)
    rows = rows.with_rows(rows.source, rows.schema.encoded_by(own))
    filled = rows_like_fit(fitted, rows).X.compute()
    assert filled.has_sorted_indices
    np.testing.assert_array_equal(filled.toarray(), dense)
    assert filled.dtype == dense.dtype


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"names": "abd"},
            r"the encoding of 'job' \(has job=d, lacks job=c\) differs: each store learns rules of its own",
        ),
        ({"names": "ab"}, r"X has 11 features, but .* expecting 12 .*'job' \(lacks job=c\)"),
        ({"x": 1.0}, r"'x' \(lacks x=<missing>\)"),
        # the same names of encoded columns, which mean something else
        ({"unit": "g"}, r"'weight' \(number written as 1234.56 g; .* in the fit number written as 1234.56 kg"),
    ],
)
def test_stores_with_other_columns_are_refused_by_name_with_the_remedy(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    model, (frame, labels) = model_on(tmp_path), table(1, **changed)
    store = dkl.create_dataset(tmp_path / "other.zarr", frame, labels)
    for asked in (model.predict, model.score, lambda rows: dkl.explain.importance(model, rows)):
        with pytest.raises(ValueError, match=message) as raised:
            asked(store)
        assert "dataset.append(frame, y), which encodes them by its rules" in str(raised.value)
    if "unit" in changed:
        return
    # both remedies give the same answers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableDifferenceWarning)
        appended = dkl.open_dataset(tmp_path / "fit.zarr").append(frame, labels)
        np.testing.assert_array_equal(model.predict(appended).compute()[N:], model.predict(frame))

"""dkl.sweep: values are judged by what the papers' definitions say of held-out rows, without reading a row again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import dkl
from dkl.data.coerce import as_dataset
from dkl.encodings.categories import with_categories
from dkl.linear.fitting import Run
from dkl.linear.judge import Folds
from dkl.model_selection.folds import fold_views
from dkl.protocols.sampling import smallest_keys


@pytest.fixture(scope="module")
def sphere() -> tuple[np.ndarray, np.ndarray]:
    """Rows labelled by their length: candidates of middle length tell it, most of a narrow kernel's do not."""
    X = np.random.default_rng(0).standard_normal((900, 6))
    return X, (np.linalg.norm(X, axis=1) > np.sqrt(6.0)).astype(int)


ALIGNED = dkl.AlignedFeatures(dkl.Gaussian(1.0), n_candidates=150, n_features=30, dtype="float64", progress=False)
POSTERIOR = dkl.PosteriorFeatures(dkl.Gaussian(1.0), n_candidates=150, n_features=30, dtype="float64", progress=False)


def centred_targets(y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    targets = np.sqrt(2.0) * (y[:, None] == np.unique(y)) if y.dtype.kind == "i" else y[:, None]
    return targets - np.average(targets, axis=0, weights=weight)


def kernel(frequencies: np.ndarray, shares: np.ndarray, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    total = np.zeros((len(X), len(Z)))
    for frequency, share in zip(frequencies, shares, strict=True):
        total += share * np.cos((X @ frequency)[:, None] - (Z @ frequency)[None, :])
    return total


def held_out_alignment(learner: Any, X: np.ndarray, y: np.ndarray, weight: np.ndarray, fold: np.ndarray) -> list[float]:
    """By kernel matrices: each fold's rows with all others, over the size on the pairs of a sample of rows."""
    found = []
    rows = smallest_keys(as_dataset(X, y, weight).source.ticket(0), 1024, seed=11)
    sample = np.asarray(rows.X)
    for number in range(fold.max() + 1):
        inside, outside = fold == number, fold != number
        fitted = clone(learner).fit(X[outside], y[outside], sample_weight=weight[outside])
        W, shares = np.asarray(fitted.frequencies_), fitted.feature_map_.amplitudes**2
        left = centred_targets(y[inside], weight[inside]) * (weight[inside] / weight[inside].sum())[:, None]
        right = centred_targets(y[outside], weight[outside]) * (weight[outside] / weight[outside].sum())[:, None]
        alignment = np.sum((left @ right.T) * kernel(W, shares, X[inside], X[outside]))
        share = weight / weight.sum()
        to_mean, mean = kernel(W, shares, sample, X) @ share, share @ kernel(W, shares, X, X) @ share
        pairs = [
            kernel(W, shares, sample[i : i + 1], sample[i + 1 : i + 2])[0, 0] - to_mean[i] - to_mean[i + 1] + mean
            for i in range(0, len(sample) - 1, 2)
        ]
        targets = centred_targets(np.asarray(rows.y), np.ones(len(sample)))
        size = np.linalg.norm(targets.T @ targets) / len(sample)
        found.append(alignment / (np.sqrt(np.mean(np.square(pairs))) * size))
    return found


def test_a_similarity_of_labels_judges_as_it_weighs(sphere: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = sphere[0][:200], np.digitize(np.linalg.norm(sphere[0][:200], axis=1), [2.2, 2.6])
    values = {"rho": [0.5, 4.0]}

    def judged(S: Any) -> Any:
        learner = clone(ALIGNED).set_params(similarity=S, random_state=0)
        return dkl.sweep(learner, X, y, values=values, random_state=0).table["alignment"]

    np.testing.assert_allclose(judged(2.0 * np.eye(3) - 1.0), judged(None))
    assert not np.allclose(judged([[1, 0, -1], [0, 1, 0], [-1, 0, 1]]), judged(None))


@pytest.mark.parametrize(
    ("learner", "values", "of_numbers"),
    [
        (ALIGNED, {"rho": [0.5, 4.0], "n_features": [20]}, False),
        (ALIGNED, {"rho": [0.5], "estimator": ["support"], "n_features": [40]}, True),
        (POSTERIOR, {"beta": [0.5, 20.0]}, False),
    ],
    ids=["aligned", "aligned-numbers", "posterior"],
)
def test_a_value_is_judged_by_its_alignment_with_the_fold_that_it_has_not_seen(
    sphere: tuple[np.ndarray, np.ndarray], learner: Any, values: dict[str, Any], of_numbers: bool
) -> None:
    X, y = sphere[0][:200], sphere[1][:200]
    y = np.linalg.norm(X, axis=1) if of_numbers else y
    # no whole numbers: a fit takes these for copies of rows, and draws among them
    weight = 0.5 + np.arange(200) % 3
    found = dkl.sweep(learner, X, y, values=values, folds=3, sample_weight=weight, random_state=11)
    fold = Folds.of(3, 11)(np.arange(200))
    shares = np.array([weight[fold == number].sum() for number in range(3)])
    for _, row in found.table.iterrows():
        chosen = clone(learner).set_params(random_state=11, **row.drop(["alignment", "deviation"]).to_dict())
        if "n_features" in values:
            chosen.set_params(n_features=int(row["n_features"]))
        expected = held_out_alignment(chosen, X, y, weight, fold)
        # the kernels of pairs are kept in float32
        assert row["alignment"] == pytest.approx(shares @ expected / shares.sum(), rel=1e-5)
        assert row["deviation"] == pytest.approx(np.std(expected), rel=1e-3)


def test_the_radius_that_is_found_is_neither_plain_nor_a_single_feature(sphere: tuple[np.ndarray, np.ndarray]) -> None:
    learner = dkl.AlignedFeatures(dkl.Gaussian(0.8), n_candidates=2_000, n_features=60, progress=False)
    found = dkl.sweep(learner, *sphere, values={"rho": [0.0, 2.0, 10.0, 40.0, 1_900.0]}, random_state=0)
    assert found.best_params_["rho"] in (2.0, 10.0, 40.0)

    X = np.random.default_rng(1).standard_normal((2_000, 6))
    y = (np.linalg.norm(X, axis=1) > np.sqrt(6.0)).astype(int)

    def accuracy(rho: float) -> float:
        features = clone(learner).set_params(rho=rho, random_state=0)
        machine = dkl.KernelClassifier(features, solver="newton", loss="squared_hinge", alpha=1e-3, progress=False)
        return machine.fit(*sphere).score(X, y)

    assert accuracy(found.best_params_["rho"]) > max(accuracy(0.0), accuracy(1_900.0)) + 0.03


@pytest.mark.parametrize("learner", [ALIGNED, POSTERIOR], ids=["aligned", "posterior"])
def test_the_best_learner_is_the_one_that_a_fit_would_give(sphere: tuple[np.ndarray, np.ndarray], learner: Any) -> None:
    name = "rho" if learner is ALIGNED else "beta"
    found = dkl.sweep(learner, *sphere, values={name: [0.1, 1.0], "n_features": [10, 24]}, random_state=5)
    fitted = clone(learner).set_params(random_state=5, **found.best_params_).fit(*sphere)
    np.testing.assert_array_equal(found.best_learner_.transform(sphere[0]), fitted.transform(sphere[0]))
    assert repr(found).startswith("Sweep: 4 combinations in ")
    assert "n_features" in found._repr_html_()
    assert found.best_score_ == found.table["alignment"].max()


def test_a_sweep_reads_the_rows_no_more_often_for_many_values(sphere: tuple[np.ndarray, np.ndarray]) -> None:
    def passes(count: int) -> int:
        events: list[Any] = []
        learner = clone(ALIGNED).set_params(progress=events.append)
        dkl.sweep(learner, *sphere, values={"rho": np.geomspace(0.01, 10.0, count).tolist()}, random_state=0)
        return sum(event.kind == "finished" for event in events)

    assert passes(2) == passes(60)


@pytest.mark.parametrize(
    ("learner", "values", "message"),
    [
        (ALIGNED, {"n_candidates": [10]}, "only rho, k, n_features, estimator need no further pass"),
        (POSTERIOR, {"rho": [1.0]}, "only beta, n_features, estimator need no further pass"),
        (ALIGNED, {"rho": []}, "expected lists of values"),
        (ALIGNED, {}, "expected lists of values"),
        (ALIGNED, {"rho": [-1.0]}, "The 'rho' parameter of AlignedFeatures"),
        (dkl.RandomFeatures(), {"n_features": [10]}, "a sweep is for AlignedFeatures and PosteriorFeatures"),
    ],
)
def test_what_needs_a_pass_of_its_own_is_refused(
    sphere: tuple[np.ndarray, np.ndarray], learner: Any, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dkl.sweep(learner, *sphere, values=values)


def test_folds_of_a_sweep_are_those_of_a_search(sphere: tuple[np.ndarray, np.ndarray]) -> None:
    views = fold_views(as_dataset(*sphere), Folds.of(0.25, 2))
    assert len(views) == 1
    found = dkl.sweep(ALIGNED, *sphere, values={"rho": [1.0]}, folds=0.25, random_state=2)
    assert found.table["deviation"].tolist() == [0.0]


def test_rows_that_judge_tell_no_other_row_their_targets_by_way_of_target_means() -> None:
    n, values = 1_500, {"rho": [0.0, 1.0], "n_features": [10, 30]}
    rng = np.random.default_rng(0)
    person = rng.integers(0, 100, n)
    frame = pd.DataFrame({"person": [f"p{number:03d}" for number in person], "x": rng.normal(size=n)})
    y = (rng.random(n) < 0.3 + 0.4 * (person % 2)).astype(int)
    learner = clone(ALIGNED).set_params(scaling="standard", random_state=1)
    found = dkl.sweep(learner, frame, y, values=values, folds=5, random_state=7)
    assert found.best_score_ > 0.05
    assert found.best_learner_.transform(frame).shape[0] == n
    dataset, folds = as_dataset(frame, y), Folds.of(5, 7)
    held_with = next(dataset.source.blocks_without_x()).held_with
    held_out = folds.held_out
    np.testing.assert_array_equal(held_out.mask(held_with), folds(held_with) == 0)
    # one fold judges, on numbers that were made without the targets of its rows
    changed = np.where(held_out.mask(held_with), 1 - y, y)
    numbered = with_categories(dataset, held_out, Run())
    others = with_categories(as_dataset(frame, changed), held_out, Run())
    outside = ~held_out.mask(held_with)
    np.testing.assert_array_equal(numbered.X.compute()[outside], others.X.compute()[outside])
    again = dkl.sweep(learner, numbered, values=values, folds=0.2, random_state=7)
    pd.testing.assert_frame_equal(again.table, found.table)
    assert (found.table["deviation"] == 0.0).all()

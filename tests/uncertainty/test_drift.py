"""drift: the discrepancy by its definition, false alarms as often as promised, power, rows of every kind, refusals."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from pathlib import Path

import dask.array
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse, stats
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.kernels.maps import map_rows
from dkl.methods.leverage.sums import gram_sums
from dkl.uncertainty.drift_statistics import (
    bin_differences,
    holm,
    mean_discrepancy,
    name_difference,
    weighted_chi_squared_tail,
)

RNG = np.random.default_rng(0)
A = RNG.normal(size=(300, 4))
B = RNG.normal(size=(200, 4)) + np.array([0.0, 0.6, 0.0, 0.0])


def waves(n_features: int, d: int, seed: int = 0, sigma: float = 2.0) -> dkl.FeatureMap:
    drawn = dkl.Gaussian(sigma).draw(n_features // 2, d, seed, np.float64)
    drawn.amplitudes[:] = 1.0 / np.sqrt(n_features // 2)
    return drawn


def discrepancy_of(a: np.ndarray, b: np.ndarray, feature_map: dkl.FeatureMap, weights: tuple = (None, None)) -> object:
    """By the functions that drift uses, on rows in memory."""
    columns = (0, feature_map.n_features + 1)
    given = [np.ones(len(x)) if w is None else w for x, w in zip((a, b), weights, strict=True)]
    return mean_discrepancy(
        *(gram_sums(x, w, feature_map, columns, "float64") for x, w in zip((a, b), given, strict=True))
    )


def test_the_discrepancy_is_the_double_loop_over_pairs_of_rows() -> None:
    features = waves(20, 4)
    a, b = A[:15], B[:12]
    phi = [map_rows(x, features, "float64") for x in (a, b)]
    within = [np.mean([[p @ q for q in rows] for p in rows]) for rows in phi]
    between = np.mean([[p @ q for q in phi[1]] for p in phi[0]])
    found = discrepancy_of(a, b, features)
    assert found.squared == pytest.approx(within[0] + within[1] - 2.0 * between, rel=1e-10)
    assert found.statistic == pytest.approx(15 * 12 / 27 * found.squared)


def test_the_null_has_the_mean_and_variance_of_dealing_the_rows_anew() -> None:
    rows, features = np.random.default_rng(1).normal(size=(60, 3)), waves(30, 3, sigma=0.7)
    phi = map_rows(rows, features, "float64")
    rng, statistics = np.random.default_rng(2), []
    for _ in range(20_000):
        order = rng.permutation(60)
        apart = phi[order[:25]].mean(axis=0) - phi[order[25:]].mean(axis=0)
        statistics.append(25 * 35 / 60 * apart @ apart)
    # the p value of each dealing is that of its rank, up to the shape of the law
    grams = [
        gram_sums(rows[part], np.ones(len(rows[part])), features, (0, 31), "float64")
        for part in (slice(25), slice(25, 60))
    ]
    found = mean_discrepancy(*grams)
    assert found.p_value == pytest.approx(np.mean(np.array(statistics) >= found.statistic), abs=0.03)
    for probability in (0.5, 0.1, 0.05, 0.01):
        border = np.quantile(statistics, 1.0 - probability)
        # other samples of the same pooled rows: the pooled moments stay, the distance of the means is the border's
        moved = np.array(grams)
        total = moved.sum(axis=0)
        mean, direction = total[-31:-1] / total[-1], np.zeros(30)
        direction[0] = np.sqrt(border * 60 / (25 * 35))
        moved[0, -31:-1], moved[1, -31:-1] = 25 * (mean + direction * 35 / 60), 35 * (mean - direction * 25 / 60)
        assert mean_discrepancy(*moved).p_value == pytest.approx(probability, rel=0.15)


@pytest.mark.parametrize("weights", [np.ones(1), np.full(30, 0.2), np.array([1.0, 0.5, 0.1]), 0.8 ** np.arange(20.0)])
def test_the_tail_of_weighted_chi_squares_is_that_of_drawn_ones(weights: np.ndarray) -> None:
    drawn = np.random.default_rng(6).chisquare(1, (200_000, len(weights))) @ weights
    for probability in (0.9, 0.5, 0.1, 0.05, 0.01):
        x = float(np.quantile(drawn, 1.0 - probability))
        assert weighted_chi_squared_tail(x, weights) == pytest.approx(probability, rel=0.1)
    # the formula has a gap at the mean, which its limit closes
    mean, deviation = weights.sum(), np.sqrt(2.0 * np.square(weights).sum())
    around = [weighted_chi_squared_tail(mean + share * deviation, weights) for share in (-2e-3, -9e-4, 0.0, 9e-4, 2e-3)]
    assert np.all(np.diff(around) < 0.0)
    assert np.all(np.diff(around) > -2e-3)
    assert weighted_chi_squared_tail(-1.0, weights) == 1.0


def test_tiny_tails_keep_their_digits() -> None:
    assert weighted_chi_squared_tail(300.0, np.full(4, 0.5)) == pytest.approx(stats.chi2.sf(600.0, 4), rel=0.05)


def test_bins_of_columns_are_compared_by_pearsons_chi_squared() -> None:
    a, b = np.array([[30.0, 20.0, 10.0], [60.0, 0.0, 0.0]]), np.array([[10.0, 20.0, 30.0], [60.0, 0.0, 0.0]])
    distance, p_values = bin_differences(a, b)
    np.testing.assert_allclose(distance, [1 / 3, 0.0])
    assert p_values[0] == pytest.approx(stats.chi2.sf(sum((o - 20.0) ** 2 / 20.0 for o in (30, 20, 10, 10, 20, 30)), 2))
    assert p_values[0] == pytest.approx(stats.chi2_contingency(np.array([a[0], b[0]]), correction=False).pvalue)
    assert p_values[1] == 1.0
    # a bin of a single row is joined with its neighbour
    few = bin_differences(np.array([[30.0, 29.0, 1.0]]), np.array([[20.0, 39.0, 1.0]]))[1]
    assert few == bin_differences(np.array([[30.0, 30.0]]), np.array([[20.0, 40.0]]))[1]


@pytest.mark.parametrize(("times", "repetitions"), [(1, 500), pytest.param(4, 1_500, marks=pytest.mark.slow)])
def test_names_are_compared_by_all_ways_to_deal_the_rows(times: int, repetitions: int) -> None:
    """Of a few rows, which are dealt at random, and of more, of which a law has the mean and the variance."""
    names, rng = np.repeat(np.arange(8), times * np.array([1, 1, 2, 3, 5, 8, 20, 0])), np.random.default_rng(1)
    p_values = []
    for _ in range(repetitions):
        is_a = rng.permutation(len(names)) < 15 * times
        p_values.append(name_difference(*(np.bincount(names[part], minlength=8) for part in (is_a, ~is_a))))
    for level in (0.5, 0.2, 0.05, 0.01):
        assert np.mean(np.array(p_values) < level) == pytest.approx(level, abs=0.02 + 0.1 * level)
    # with many rows of each name it is Pearson's test
    table = np.array([[300.0, 420.0, 280.0], [310.0, 350.0, 340.0]])
    assert name_difference(*table) == pytest.approx(stats.chi2_contingency(table, correction=False).pvalue, rel=0.02)
    assert name_difference(np.eye(1, 20)[0] * 5, np.eye(1, 20)[0] * 9) == 1.0
    # names of one row each say nothing, while names of two rows that are never of both samples do
    ones = np.ones(30)
    assert name_difference(np.r_[ones, 0 * ones], np.r_[0 * ones, ones]) == 1.0
    assert name_difference(2 * np.r_[ones, 0 * ones], 2 * np.r_[0 * ones, ones]) < 1e-6


@pytest.mark.parametrize(("few", "n_names"), [(5, 60), (15, 200)])
def test_names_of_a_few_rows_beside_many_alarm_as_seldom_as_promised(few: int, n_names: int) -> None:
    rng = np.random.default_rng(few)
    shares = np.full(n_names, 1.0 / n_names)
    p_values = [name_difference(rng.multinomial(few, shares), rng.multinomial(5_000, shares)) for _ in range(300)]
    for alpha in (0.01, 0.05):
        assert np.mean(np.less(p_values, alpha)) <= alpha + 2.0 * np.sqrt(alpha * (1.0 - alpha) / len(p_values))


def test_few_rows_of_names_have_the_p_value_of_all_ways_to_deal_them() -> None:
    """Three rows of seven, in all 35 ways."""
    names = np.array([0, 0, 0, 1, 1, 2, 3])
    tables = [np.bincount(names[list(taken)], minlength=4) for taken in itertools.combinations(range(7), 3)]
    sums = np.array([(few**2 / np.bincount(names)).sum() for few in tables])
    for few, own in zip(tables, sums, strict=True):
        exact = np.mean(sums >= own - 1e-9)
        assert name_difference(few, np.bincount(names) - few) == pytest.approx(exact, abs=0.02)
    # a law of its own is found
    assert name_difference(np.eye(1, 60)[0] * 5, np.full(60, 80)) < 0.001


def test_holms_values_are_those_of_going_down_the_list() -> None:
    p_values = np.array([0.01, 0.04, 0.03, 0.005, 0.9])
    np.testing.assert_allclose(holm(p_values), [0.04, 0.09, 0.09, 0.025, 0.9])
    rejected = []
    # Holm 1979: the k-th smallest is compared with alpha / (d - k + 1), and the first that fails ends it
    for k, j in enumerate(np.argsort(p_values)):
        if p_values[j] > 0.05 / (5 - k):
            break
        rejected.append(j)
    assert sorted(rejected) == np.flatnonzero(holm(p_values) <= 0.05).tolist()


def rates(n_a: int, n_b: int, d: int, repetitions: int, shift: float = 0.0) -> np.ndarray:
    """The p values of samples, of one law where nothing is shifted; bandwidth near the median."""
    rng, found = np.random.default_rng(n_a + n_b + d), []
    for seed in range(repetitions):
        features = waves(40, d, seed, sigma=np.sqrt(2.0 * d))
        a, b = rng.normal(size=(n_a, d)), rng.normal(size=(n_b, d))
        b[:, 0] += shift
        found.append(discrepancy_of(a, b, features).p_value)
    return np.array(found)


@pytest.mark.parametrize(("n_a", "n_b", "d"), [(300, 100, 10), pytest.param(100, 100, 3, marks=pytest.mark.slow)])
def test_alike_samples_are_said_to_differ_in_five_of_a_hundred_cases(n_a: int, n_b: int, d: int) -> None:
    p_values = rates(n_a, n_b, d, 600)
    # one standard error of a share of 0.05 is 0.009 here
    assert np.mean(p_values < 0.05) == pytest.approx(0.05, abs=0.02)
    assert np.mean(p_values < 0.5) == pytest.approx(0.5, abs=0.05)


@pytest.mark.slow
def test_the_whole_call_keeps_its_level_for_samples_and_for_columns() -> None:
    rng = np.random.default_rng(3)
    found = [dkl.drift(rng.lognormal(size=(120, 3)), rng.lognormal(size=(100, 3)), n_features=40) for _ in range(40)]
    # of 40 tries of probability 0.05, seven or more come once in 300 times
    assert sum(not each.alike for each in found) < 7
    assert sum(bool(each.differing) for each in found) < 7


def mixed_frame(kind: str, n: int, rng: np.random.Generator) -> pd.DataFrame:
    """Rows of one law: numbers, and names, dates or texts."""
    rows = pd.DataFrame({"x": rng.normal(size=n)})
    if kind == "dates":
        rows["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1_000 * 86_400, n), unit="s")
    elif kind == "texts":
        words = np.array(["the", "a", "big", "small", "red", "blue", "cat", "dog", "runs", "eats", "sees"])
        rows["text"] = [" ".join(rng.choice(words, rng.integers(2, 6))) for _ in range(n)]
    else:
        shares = 1.0 / np.arange(1, int(kind) + 1) if kind == "1000" else np.ones(int(kind))
        rows["name"] = [f"n{i}" for i in rng.choice(int(kind), n, p=shares / shares.sum())]
        rows.loc[rng.random(n) < 0.02, "name"] = None
    return rows


def alarms(kind: str, held: str, repetitions: int, n: tuple[int, int] = (300, 300)) -> tuple[int, int]:
    """How often samples of one law are said to differ, and any of their columns."""
    found = []
    for seed in range(repetitions):
        rng = np.random.default_rng([repetitions, seed])
        a, b = (mixed_frame(kind, rows, rng) for rows in n)
        names = [name for name in ("name",) if name in a]
        if held == "store":
            a = dkl.create_dataset("memory://drift.zarr", a, rows_a_block=100, categorical=names, overwrite=True)
        if held == "appended":
            a = dkl.create_dataset("memory://grown.zarr", a, rows_a_block=100, categorical=names, overwrite=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # names that the store has not seen
                b = a.append(b).drop(blocks=range(a.source.n_blocks))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the free text of", UserWarning)  # texts of a store are not compared
            # of 3,000 names nearly all of 600 rows have one of their own: frames are compared without them
            warnings.filterwarnings("ignore", ".* set aside", UserWarning)
            found.append(dkl.drift(a, b, n_features=60, random_state=seed))
    return sum(not each.alike for each in found), sum(bool(each.differing) for each in found)


KINDS = ("60", "400", "1000", "3000", "dates", "texts")
CASES = [(kind, held) for kind in KINDS for held in ("frames", "store", "appended")]


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("1000", "store"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("400", "appended"), ("texts", "store"))),
    ],
)
def test_names_of_one_law_are_no_alarm(kind: str, held: str) -> None:
    # of 8 tries of probability 0.05, four or more come once in 2,700 times
    assert max(alarms(kind, held, 8)) < 4


@pytest.mark.slow
@pytest.mark.timeout(7200)  # up to two minutes of a processor, which others may share
@pytest.mark.parametrize(("kind", "held"), CASES)
@pytest.mark.parametrize("n", [(300, 300), (1_000, 300)])
def test_the_level_is_kept_for_names_dates_and_texts(kind: str, held: str, n: tuple[int, int]) -> None:
    # two standard errors of a share of 200
    assert max(alarms(kind, held, 200, n)) <= 200 * 0.05 + 2.0 * np.sqrt(200 * 0.05 * 0.95)


def test_names_that_nearly_every_row_has_for_itself_are_compared_as_the_warning_says() -> None:
    rng = np.random.default_rng(13)
    a, b = (mixed_frame("3000", 300, rng) for _ in "ab")
    with pytest.warns(UserWarning, match=r"create_dataset\('a.zarr', a, categorical=\['name'\]\)"):
        assert [column.name for column in dkl.drift(a, b).columns] == ["x"]
    stored = dkl.create_dataset("memory://drift-named.zarr", a, categorical=["name"])
    assert [column.name for column in dkl.drift(stored, b).columns] == ["x", "name"]
    with pytest.raises(ValueError, match=r"create_dataset\('a.zarr', a, categorical=\['name'\]\)"):
        dkl.drift(a[["name"]], b[["name"]])


def test_names_that_differ_are_still_told_apart() -> None:
    rng = np.random.default_rng(7)
    a, b = (mixed_frame("400", 1_000, rng) for _ in "ab")
    gone = b[b["name"].isin([f"n{i}" for i in range(200)])].reset_index(drop=True)
    lacking = b.assign(name=b["name"].where(rng.random(1_000) > 0.15))
    other = b.assign(name=b["name"] + " of another shop")
    stored = dkl.create_dataset("memory://drift-power.zarr", a)
    for different in (gone, lacking, other):
        for sample in (a, stored):
            found = dkl.drift(sample, different)
            assert [column.name for column in found.differing] == ["name"]
    # new names in a store that has grown have no codes, and are compared with what is rare
    stored = dkl.create_dataset("memory://drift-grown.zarr", mixed_frame("60", 1_000, rng))
    with pytest.warns(dkl.errors.TableDifferenceWarning):
        grown = stored.append(other)
    assert [c.name for c in dkl.drift(stored, grown.drop(blocks=range(stored.source.n_blocks))).differing] == ["name"]


def test_it_makes_no_difference_which_sample_comes_first() -> None:
    rng = np.random.default_rng(8)
    a, b = mixed_frame("400", 300, rng), mixed_frame("400", 300, rng)
    b.loc[::9, "x"] = np.nan
    one, other = dkl.drift(a, b), dkl.drift(b, a)
    assert [column.name for column in one.columns] == [column.name for column in other.columns]
    assert [column.distance for column in one.columns] == pytest.approx([c.distance for c in other.columns], abs=1e-3)
    beside = dkl.drift(dkl.create_dataset("memory://drift-first.zarr", b), a)
    assert [column.distance for column in beside.columns] == pytest.approx([c.distance for c in other.columns], abs=0.1)


def test_rows_of_weight_0_teach_no_rule() -> None:
    rng = np.random.default_rng(9)
    a, b = mixed_frame("60", 300, rng), mixed_frame("60", 300, rng)
    more = pd.concat([b, b.assign(name="nobody", x=1e6)], ignore_index=True)
    weights = np.repeat([1.0, 0.0], 300)
    plain = dkl.drift(a, b)
    for rows, of_rows in ((more, weights), (dd.from_pandas(more, npartitions=4, sort=False), weights)):
        for each in (of_rows, dask.array.from_array(of_rows, chunks=70)):
            weighted = dkl.drift(a, rows, sample_weights=(None, each))
            assert weighted.squared_discrepancy == pytest.approx(plain.squared_discrepancy, rel=1e-3)
            assert [column.name for column in weighted.columns] == [column.name for column in plain.columns]


def test_gaps_of_arrays_are_filled_however_these_come() -> None:
    rng = np.random.default_rng(12)
    a, b = rng.normal(size=(2, 200, 2))
    a[::7, 1] = np.nan
    expected = dkl.drift(a, b)
    assert len(expected.columns) == 3
    for form in (lambda rows: dask.array.from_array(rows, chunks=(60, 1)), np.ndarray.tolist):
        found = dkl.drift(form(a), form(b))
        assert found.p_value == pytest.approx(expected.p_value, rel=1e-6)
        assert [column.name for column in found.columns] == [column.name for column in expected.columns]


def test_texts_are_compared_where_their_directions_fit_both_samples_alike() -> None:
    rng = np.random.default_rng(13)
    a, b = mixed_frame("texts", 200, rng), mixed_frame("texts", 200, rng)
    other = b.assign(text=b["text"].str.replace("cat", "sea"))
    assert not dkl.drift(a, other).alike
    stored = dkl.create_dataset("memory://drift-texts.zarr", a)
    grown = stored.append(b)
    for sample in (b, grown.drop(blocks=range(stored.source.n_blocks))):
        with pytest.warns(
            UserWarning, match=r"free text of \['text'\] is not compared.*give both samples as data frames"
        ):
            assert [column.name for column in dkl.drift(stored, sample).columns] == ["x"]
    # the rows of both parts were there when the directions were learned
    parts = stored.split({"one": 0.5, "other": 0.5}, seed=0)
    assert len(dkl.drift(parts["one"], parts["other"]).columns) > 1
    with pytest.raises(ValueError, match="hold directions of free text, which mean other words in a than in b"):
        dkl.drift(stored, dkl.create_dataset("memory://drift-texts-b.zarr", b))
    texts = dkl.create_dataset("memory://drift-texts-alone.zarr", a[["text"]])
    with pytest.raises(ValueError, match="hold free text alone"):
        dkl.drift(texts, b[["text"]])


def test_a_column_of_another_kind_is_refused_with_its_sample_and_row() -> None:
    numbers = pd.DataFrame({"x": np.arange(50.0), "y": np.arange(50.0)})
    with pytest.raises(ValueError, match="column 'x' is 'one' in row 3, and held numbers before") as caught:
        dkl.drift(numbers, numbers.assign(x=["1", "2", "3", "one"] + ["5"] * 46))
    assert "b, a sample of rows given to drift" in "".join(caught.value.__notes__)
    with pytest.raises(ValueError, match="column 'x' is inf in row 7") as caught:
        dkl.drift(numbers, numbers.assign(x=np.where(np.arange(50) == 7, np.inf, 1.0)))
    assert "b, a sample of rows given to drift" in "".join(caught.value.__notes__)
    texts = dkl.drift(numbers, numbers.astype(str))
    assert texts.alike


def permutation_p_value(a: np.ndarray, b: np.ndarray, rng: np.random.Generator) -> float:
    """The two-sample test with the exact Gaussian kernel at the median distance, the null by permutations."""
    X = np.vstack([a, b])
    squares = np.square(X[:, None] - X).sum(axis=2)
    K = np.exp(-squares / np.median(squares[np.triu_indices(len(X), 1)]) / 2.0)
    signs = np.r_[np.full(len(a), 1.0 / len(a)), np.full(len(b), -1.0 / len(b))]
    null = [s @ K @ s for s in (rng.permutation(signs) for _ in range(100))]
    return float(np.mean([signs @ K @ signs <= value for value in [*null, np.inf]]))


@pytest.mark.slow
def test_power_is_that_of_a_permutation_test_with_the_exact_kernel() -> None:
    rng, found = np.random.default_rng(4), []
    for _ in range(25):
        a, b = rng.normal(size=(100, 3)), rng.normal(size=(100, 3))
        b[:, 0] += 0.4
        found.append((permutation_p_value(a, b, rng) < 0.05, not dkl.drift(a, b, n_features=200).alike))
    exact, ours = np.mean(found, axis=0)
    assert 0.3 < exact < 1.0
    assert ours >= exact - 0.1


def test_rows_of_every_kind_give_one_answer(tmp_path: Path) -> None:
    expected = dkl.drift(A, B)
    assert not expected.alike
    assert [column.name for column in expected.differing] == ["column 1"]
    stores = [dkl.create_dataset(tmp_path / f"{name}.zarr", X, rows_a_block=64) for name, X in (("a", A), ("b", B))]
    for a, b in [
        stores,
        (dask.array.from_array(A, chunks=(64, 4)), dask.array.from_array(B, chunks=(64, 4))),
        (pd.DataFrame(A, columns=list("pqrs")), pd.DataFrame(B, columns=list("pqrs"))),
        (stores[0], B),
        (A, stores[1]),
    ]:
        found = dkl.drift(a, b)
        # frames and stores of single precision round the rows
        assert found.squared_discrepancy == pytest.approx(expected.squared_discrepancy, rel=1e-4)
        assert found.p_value == pytest.approx(expected.p_value, rel=1e-2)
        assert [column.distance for column in found.columns] == pytest.approx(
            [column.distance for column in expected.columns], abs=0.02
        )
    dense = dkl.drift(A * (A > 0.5), B * (B > 0.5))
    thin = dkl.drift(*(sparse.csr_array(X * (X > 0.5)) for X in (A, B)))
    assert thin.p_value == pytest.approx(dense.p_value, rel=1e-3)
    assert [c.distance for c in thin.columns] == pytest.approx([c.distance for c in dense.columns])


def test_categories_and_gaps_of_frames_are_compared_as_the_first_frame_has_them() -> None:
    rng = np.random.default_rng(5)
    a = pd.DataFrame({"x": rng.normal(size=300), "colour": rng.choice(["red", "blue"], 300)})
    b = pd.DataFrame({"x": rng.normal(size=250), "colour": rng.choice(["red", "blue"], 250, p=[0.8, 0.2])})
    a.loc[::7, "x"] = np.nan
    b.loc[::7, "x"] = np.nan
    found = dkl.drift(a, b)
    assert not found.alike
    assert {column.name for column in found.differing} == {"colour=blue", "colour=red"}


def test_gaps_that_only_one_array_has_are_a_difference() -> None:
    holey = A[150:].copy()
    holey[::3, 2] = np.nan
    for a, b in ((A[:150], holey), (holey, A[:150])):
        found = dkl.drift(a, b)
        assert not found.alike
        # the flag of the gaps, which a third of the rows have
        assert max(column.distance for column in found.columns) == pytest.approx(50 / 150)
    assert dkl.drift(holey, holey).alike


def test_codes_of_many_categories_are_compared_where_they_mean_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    a, b = (pd.DataFrame({"id": [f"u{i}" for i in rng.integers(0, top, 400)]}) for top in (60, 60))
    assert dkl.drift(a, b).alike
    assert not dkl.drift(a, pd.DataFrame({"id": [f"u{i}" for i in rng.integers(0, 20, 400)]})).alike
    apart = [dkl.create_dataset(tmp_path / name, frame) for name, frame in (("a", a), ("b", b[b["id"] != "u3"]))]
    with pytest.raises(ValueError, match=r"\['id'\] hold codes of categories, which mean other values"):
        dkl.drift(*apart)


def test_a_weight_of_two_is_the_row_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = np.where(np.arange(len(A)) % 3 == 0, 2.0, 1.0)
    features = waves(30, 4)
    weighted = discrepancy_of(A, B, features, (weights, None))
    repeated = discrepancy_of(np.repeat(A, weights.astype(int), axis=0), B, features)
    assert weighted.statistic == pytest.approx(repeated.statistic, rel=1e-9)
    assert weighted.p_value == pytest.approx(repeated.p_value, rel=1e-6)
    # the median is one of a sample, which other rows make another one
    monkeypatch.setattr("dkl.uncertainty.drifting.median_distance", lambda rows, weights: 2.0)
    found = dkl.drift(A, B, sample_weights=(weights, None))
    twice = dkl.drift(np.repeat(A, weights.astype(int), axis=0), B)
    assert found.weights == twice.weights == (400.0, 200.0)
    assert found.p_value == pytest.approx(twice.p_value, rel=1e-3)


def test_equal_rows_are_alike_and_far_ones_are_told_by_tiny_p_values() -> None:
    assert dkl.drift(A, A).p_value > 0.99
    assert dkl.drift(A, A + 3.0).p_value < 1e-30


def test_blocks_and_workers_change_no_verdict(tmp_path: Path) -> None:
    whole = dkl.drift(dkl.create_dataset(tmp_path / "a.zarr", A), dkl.create_dataset(tmp_path / "b.zarr", B))
    again = dkl.drift(dkl.open_dataset(tmp_path / "a.zarr"), dkl.open_dataset(tmp_path / "b.zarr"))
    assert whole.facts == again.facts


@pytest.mark.parametrize(
    ("b", "given", "message"),
    [
        (B[:, :3], {}, "a has 4 columns and b has 3"),
        (B[:1], {}, "b has 1 rows of total weight 1"),
        (sparse.csr_array(B), {}, "a is dense and b is sparse"),
        (B, {"alpha": 1.5}, "alpha is 1.5; expected a probability"),
        (B, {"n_features": 5_000}, "n_features is 5,000; drift sums the second moments of at most 4,094"),
        (B, {"sample_weights": (None,)}, "sample_weights holds 1 arrays"),
        (np.zeros((0, 4)), {}, "row"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(b: object, given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dkl.drift(A, b, **given)


def test_a_message_says_which_sample_it_is_about() -> None:
    with pytest.raises(ValueError, match="holds no rows") as caught:
        dkl.drift(A, "rows")
    assert "b, a sample of rows given to drift" in "".join(caught.value.__notes__)


def test_columns_of_other_names_are_named(tmp_path: Path) -> None:
    ds = dkl.create_dataset(tmp_path / "a.zarr", pd.DataFrame(A, columns=list("pqrs")))
    other = dkl.create_dataset(tmp_path / "b.zarr", pd.DataFrame(B, columns=list("pqxs")))
    with pytest.raises(ValueError, match=r"b lacks .*r.*, a lacks .*x"):
        dkl.drift(ds, other)
    with pytest.raises(ValueError, match="given for a, which is a Dataset"):
        dkl.drift(ds, ds, sample_weights=(np.ones(300), None))


def test_a_result_prints_its_verdict_and_draws_its_columns() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    found = dkl.drift(pd.DataFrame(A, columns=["p", "<q>", "r", "s"]), pd.DataFrame(B, columns=["p", "<q>", "r", "s"]))
    text = repr(found)
    assert text.startswith("300 and 200 rows differ (p = ")
    assert "1 of 4 columns differ" in text
    assert "&lt;q&gt;" in found._repr_html_()
    display = found.plot()
    assert display.names[0] == "<q>"
    assert display.differs.tolist() == [True, False, False, False]
    pyplot.close("all")


def test_the_shell_compares_two_stores(tmp_path: Path) -> None:
    for name, X in (("a", A), ("b", B)):
        dkl.create_dataset(tmp_path / f"{name}.zarr", X)
    arguments = ["drift", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr")]
    run = CliRunner().invoke(app, [*arguments, "--json"])
    assert run.exit_code == 0, run.output
    facts = json.loads(run.stdout)
    assert not facts["alike"]
    assert [column["differs"] for column in facts["columns"]] == [False, True, False, False]
    assert "rows differ" in CliRunner().invoke(app, arguments).stdout


def test_the_page_on_drift_runs_and_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib.pyplot").switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parents[2] / "examples" / "reference" / "drift.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.S)
    names: dict = {}
    exec(compile("\n".join(programs), "drift.md", "exec"), names)
    assert not names["found"].alike
    assert [column.name for column in names["found"].differing] == ["income"]
    assert not names["together"].alike
    assert names["together"].differing == ()
    assert (tmp_path / "drift.png").stat().st_size > 0

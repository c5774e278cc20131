"""The mathematics of two samples: mean discrepancy from sums, its law where they are alike, and bins of columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg, optimize, special, stats
from scipy.linalg import lapack

# A bin of which the smaller sample expects fewer rows is joined with its neighbour: the chi-squared law asks for it.
LEAST_EXPECTED = 5.0
# So near its mean, in deviations, the saddlepoint formula is 0 / 0, and its limit there is taken.
_NEAR = 1e-3
# Rows of the smaller sample up to which names are dealt anew, and how often: a gamma law of the right mean and variance
# rejects 11.6 % at a level of 5 % for 5 rows beside 5,000 with 60 names, where one pair of equal names decides, 5.7 %
# for 50 rows.
_DEALT_ROWS, _DEALS = 50, 1_999
# Eigenvalues below this share of the largest are rounding.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Discrepancy:
    """How far apart the mean features of two samples are.

    Parameters
    ----------
    squared : float
        MMD^2 = |mean phi(a) - mean phi(b)|^2.
    statistic : float
        n_a n_b / (n_a + n_b) times it.
    p_value : float
        The probability of a statistic as large where both samples are of one law.
    """

    squared: float
    statistic: float
    p_value: float


def mean_discrepancy(gram_a: np.ndarray, gram_b: np.ndarray) -> Discrepancy:
    """The discrepancy of two samples and its p value, from their packed second moments.

    Where both samples are of one law, the statistic T = n_a n_b / (n_a + n_b) |mu_a - mu_b|^2 is in the limit a sum of
    lambda_j z_j^2, z_j standard normal and lambda_j the eigenvalues of the covariance of the features (Gretton et al.
    2012, theorem 12). They are taken from the pooled rows, whose trace is the mean of T over all ways to deal the rows
    to two samples. Their squares are too large for few rows, since tr(S^2) counts each row's pair with itself: T is
    brought to the variance without these pairs.

    Parameters
    ----------
    gram_a, gram_b : ndarray of shape ((m + 1) (m + 2) / 2,)
        The upper triangle of sum_i w_i (phi_i, 1) (phi_i, 1)^T, packed by columns; phi are cosines and sines in pairs,
        so that |phi_i|^2 is the same for all rows.

    Returns
    -------
    Discrepancy
    """
    size = round((np.sqrt(8.0 * len(gram_a) + 1.0) - 1.0) / 2.0) - 1
    n_a, n_b = gram_a[-1], gram_b[-1]
    total = n_a + n_b
    apart = gram_a[-size - 1 : -1] / n_a - gram_b[-size - 1 : -1] / n_b
    squared = float(apart @ apart)
    statistic = float(n_a * n_b / total * squared)
    pooled = gram_a + gram_b
    mean = pooled[-size - 1 : -1] / total
    upper, _ = lapack.dtpttr(size, pooled[: size * (size + 1) // 2])
    second = np.triu(upper) + np.triu(upper, 1).T
    covariance = (second - total * np.outer(mean, mean)) / (total - 1.0)
    eigenvalues = linalg.eigvalsh(covariance)
    eigenvalues = eigenvalues[eigenvalues > _ROUNDING * max(eigenvalues[-1], 0.0)]
    if len(eigenvalues) == 0:
        # all rows have the same features, and nothing can differ
        return Discrepancy(squared, statistic, 1.0)
    # sum_i w_i |phi_i - mu|^4, where |phi_i - mu|^2 = a - 2 mu.phi_i, a = |phi|^2 + |mu|^2
    a = np.trace(second) / total + mean @ mean
    fourth = total * a**2 - 4.0 * a * total * (mean @ mean) + 4.0 * (mean @ second @ mean)
    squares = float(np.square(eigenvalues).sum())
    between_rows = max(squares - fourth / (total - 1.0) ** 2, 1e-6 * squares)
    centre = float(eigenvalues.sum())
    standardised = centre + (statistic - centre) * np.sqrt(squares / between_rows)
    return Discrepancy(squared, statistic, weighted_chi_squared_tail(standardised, eigenvalues))


def weighted_chi_squared_tail(x: float, weights: np.ndarray) -> float:
    """P(sum_j weights_j z_j^2 > x) for independent standard normal z_j, by the saddlepoint formula.

    Parameters
    ----------
    x : float
    weights : ndarray of shape (m,)
        Positive.

    Returns
    -------
    float
        Within a tenth of the probability, mostly within a fiftieth, however small that is.

    References
    ----------
    Kuonen 1999, "Saddlepoint approximations for distributions of quadratic forms in normal variables".
    """
    # Without a unit: the largest weight is 1.
    weights, x = weights / weights.max(), x / weights.max()
    if x <= 0.0:
        return 1.0
    mean, variance = weights.sum(), 2.0 * np.square(weights).sum()
    if abs(x - mean) < _NEAR * np.sqrt(variance):
        # log(v / w) / w of the formula tends to a sixth of the skewness
        skewness = 8.0 * np.power(weights, 3).sum() / variance**1.5
        return float(special.ndtr(-((x - mean) / np.sqrt(variance) + skewness / 6.0)))

    def slope(zeta: float) -> float:
        """K'(zeta) - x, for K(zeta) = -sum log(1 - 2 zeta weights_j) / 2."""
        return float((weights / (1.0 - 2.0 * zeta * weights)).sum() - x)

    # K' rises: at -m / (2 x) it is below x, and at (1 - 1 / (2 x)) / 2 the term of the largest weight alone is 2 x
    above = max((1.0 - 0.5 / x) / 2.0, 0.0)
    zeta = float(optimize.brentq(slope, -len(weights) / (2.0 * x), above, xtol=1e-15, rtol=1e-14))
    shrunk = 1.0 - 2.0 * zeta * weights
    w = np.sign(zeta) * np.sqrt(2.0 * zeta * x + np.log(shrunk).sum())
    v = zeta * np.sqrt(2.0 * np.square(weights / shrunk).sum())
    return float(np.clip(special.ndtr(-(w + np.log(v / w) / w)), 0.0, 1.0))


def bin_differences(counts_a: np.ndarray, counts_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far apart each column is in two samples, and how likely so far is by chance.

    Parameters
    ----------
    counts_a, counts_b : ndarray of shape (d, bins)
        The weight of the rows in each bin.

    Returns
    -------
    distance : ndarray of shape (d,)
        The largest difference between the two shares of rows up to an edge: the distance of Kolmogorov and Smirnov, on
        the edges of the bins.
    p_values : ndarray of shape (d,)
        Of Pearson's chi-squared on the table of samples by bins; 1 for a column with a single bin.
    """
    shares = [np.cumsum(counts, axis=1) / counts.sum(axis=1, keepdims=True) for counts in (counts_a, counts_b)]
    distance = np.abs(shares[0] - shares[1]).max(axis=1)
    statistics, freedom = np.zeros(len(counts_a)), np.zeros(len(counts_a))
    for column, pair in enumerate(zip(counts_a, counts_b, strict=True)):
        table = _joined_bins(np.array(pair))
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        # sum (O - E)^2 / E, chi-squared with one degree of freedom fewer than there are bins
        statistics[column] = (np.square(table - expected) / expected).sum()
        freedom[column] = table.shape[1] - 1
    p_values = np.where(freedom > 0.0, stats.chi2.sf(statistics, np.maximum(freedom, 1.0)), 1.0)
    return distance, p_values


def name_difference(counts_a: np.ndarray, counts_b: np.ndarray, seed: int = 0) -> float:
    """How likely names are as different in two samples by chance, however many of them are rare.

    Pearson's statistic of the table of samples by names has a chi-squared law only where each name has some rows. What
    it has of any table is its mean and variance over all ways to deal the rows to the two samples: the p value is that
    of a multiple of a chi-squared variable with these two. Of a few whole rows, whose statistic takes few values, the
    p value is the share of random dealings that give as large a statistic.

    Parameters
    ----------
    counts_a, counts_b : ndarray of shape (V,)
        The weight of the rows of each name.
    seed : int
        Of the dealings.

    References
    ----------
    Dawson 1954, "A simplified expression for the variance of the chi-squared function on a contingency table".
    """
    table = np.stack([counts_a, counts_b])[:, counts_a + counts_b > 0.0]
    n, by_sample, by_name = table.sum(), table.sum(axis=1), table.sum(axis=0)
    n_names = len(by_name)
    if n_names < 2 or n < 4.0:
        return 1.0
    if by_sample.min() <= _DEALT_ROWS and np.array_equal(table, np.rint(table)):
        return _dealt_difference(table[np.argmin(by_sample)], by_name, seed)
    expected = np.outer(by_sample, by_name) / n
    statistic = float((np.square(table - expected) / expected).sum())
    mean = (n_names - 1.0) * n / (n - 1.0)

    def terms(margin: np.ndarray) -> tuple[float, float]:
        size = len(margin)
        return (size - 1.0) * (n - size) / (n - 1.0), float((n / margin).sum() - size**2) / (n - 2.0)

    (v_sample, w_sample), (v_name, w_name) = terms(by_sample), terms(by_name)
    variance = 2.0 * n / (n - 3.0) * (v_sample - w_sample) * (v_name - w_name) + n**2 / (n - 1.0) * w_sample * w_name
    if variance <= _ROUNDING * mean**2:
        # each name is of one row, and the statistic the same for all dealings
        return 1.0
    return float(stats.gamma.sf(statistic, mean**2 / variance, scale=variance / mean))


def _dealt_difference(few: np.ndarray, by_name: np.ndarray, seed: int) -> float:
    """The share of random dealings of all rows that give the smaller sample names as unlike the others'.

    With the numbers of rows given, Pearson's statistic rises with sum_v k_v^2 / n_v, where k_v of the n_v rows of name
    v are in the smaller sample: with the sum over its pairs of equal names of 1 / n_v.

    Parameters
    ----------
    few, by_name : ndarray of shape (V,)
        The rows of each name, in the smaller sample and in both.
    """
    rng = np.random.default_rng(seed)
    n, n_few = int(by_name.sum()), int(few.sum())
    rows = np.empty((_DEALS, n_few), np.int64)
    # rows without repeats (Floyd 1987): one that is there already is replaced by the newest that can be drawn
    for place in range(n_few):
        newest = n - n_few + place
        drawn = rng.integers(0, newest + 1, _DEALS)
        is_there = (rows[:, :place] == drawn[:, None]).any(axis=1)
        rows[:, place] = np.where(is_there, newest, drawn)
    names = np.searchsorted(np.cumsum(by_name), rows, side="right")
    dealt = np.zeros(_DEALS)
    for place in range(n_few):
        equal = (names == names[:, place, None]).sum(axis=1)
        dealt += equal / by_name[names[:, place]]
    # the sample itself is one of the dealings; equal sums differ by rounding
    as_unlike = dealt >= float((np.square(few) / by_name).sum()) * (1.0 - _ROUNDING)
    return float((as_unlike.sum() + 1.0) / (_DEALS + 1.0))


def _joined_bins(table: np.ndarray) -> np.ndarray:
    """The bins (2, bins) of two samples, neighbours joined until the smaller sample expects five rows in each."""
    smaller_share = table.sum(axis=1).min() / table.sum()
    joined: list[np.ndarray] = []
    gathered = np.zeros(2)
    for cell in table.T:
        gathered = gathered + cell
        if gathered.sum() * smaller_share >= LEAST_EXPECTED:
            joined.append(gathered)
            gathered = np.zeros(2)
    # what is left at the end is too small for a bin of its own
    if joined:
        joined[-1] = joined[-1] + gathered
    return np.array(joined or [gathered]).T


def holm(p_values: np.ndarray) -> np.ndarray:
    """p values of several tests, adjusted so that all of them together are wrong as seldom as one.

    A test whose adjusted value is below alpha is rejected; where nothing differs, any rejection has at most the
    probability alpha (Holm 1979), however the tests depend on each other.

    Parameters
    ----------
    p_values : ndarray of shape (d,)

    Returns
    -------
    ndarray of shape (d,)
    """
    order = np.argsort(p_values, kind="stable")
    # the smallest of d is multiplied by d, the next by d - 1; none is smaller than the one before it
    steps = np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted

"""Two-sample tests from sums: mean discrepancy and its p value, and chi-squared tests of single columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg, optimize, special, stats

from dkl.solvers.squared_sums import n_columns, unpacked

# The smallest expected number of rows of the smaller sample in a bin, as the chi-squared distribution needs it; bins
# with fewer are joined with their neighbours.
LEAST_EXPECTED = 5.0
# Within this distance from the mean, in standard deviations, the saddlepoint formula is 0 / 0; its limit replaces it.
_NEAR = 1e-3
# Up to _DEALT_ROWS rows in the smaller sample, categories are compared by a permutation test with _DEALS permutations.
# At a level of 5 % the gamma distribution that is used otherwise rejects 11.6 % for 5 rows against 5,000 with 60
# categories, where a single pair of equal categories decides, and 5.7 % for 50 rows.
_DEALT_ROWS, _DEALS = 50, 1_999
# Eigenvalues below this share of the largest one are treated as rounding errors.
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Discrepancy:
    """The distance between the mean features of two samples.

    Parameters
    ----------
    squared : float
        MMD^2 = |mean phi(a) - mean phi(b)|^2.
    statistic : float
        n_a n_b / (n_a + n_b) MMD^2.
    p_value : float
        The probability of a statistic at least as large if both samples have the same distribution.
    """

    squared: float
    statistic: float
    p_value: float


def mean_discrepancy(gram_a: np.ndarray, gram_b: np.ndarray) -> Discrepancy:
    """The discrepancy of two samples and its p value, from their packed second moments.

    If both samples have the same distribution, the statistic T = n_a n_b / (n_a + n_b) |mu_a - mu_b|^2 is in the limit
    a sum of lambda_j z_j^2, with z_j standard normal and lambda_j the eigenvalues of the covariance matrix S of the
    features (Gretton et al. 2012, theorem 12). S is that of the pooled rows; its trace is the mean of T over all
    permutations of the rows between the samples. For few rows tr(S^2) is too large, since it includes the pairs of each
    row with itself; T is rescaled about its mean to the variance without these pairs.

    Parameters
    ----------
    gram_a, gram_b : ndarray of shape ((m + 1) (m + 2) / 2,)
        The upper triangle of sum_i w_i (phi_i, 1) (phi_i, 1)^T, packed by columns; phi are cosines and sines in pairs,
        so that |phi_i|^2 is the same for all rows.

    Returns
    -------
    Discrepancy
    """
    size = n_columns(gram_a) - 1
    n_a, n_b = gram_a[-1], gram_b[-1]
    total = n_a + n_b
    apart = gram_a[-size - 1 : -1] / n_a - gram_b[-size - 1 : -1] / n_b
    squared = float(apart @ apart)
    statistic = float(n_a * n_b / total * squared)
    pooled = gram_a + gram_b
    mean = pooled[-size - 1 : -1] / total
    second = unpacked(pooled[: -size - 1])
    covariance = (second - total * np.outer(mean, mean)) / (total - 1.0)
    eigenvalues = linalg.eigvalsh(covariance)
    eigenvalues = eigenvalues[eigenvalues > _ROUNDING * max(eigenvalues[-1], 0.0)]
    if len(eigenvalues) == 0:
        # all rows have the same features
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
        Its relative error is below a tenth, and mostly below a fiftieth, also for very small probabilities.

    References
    ----------
    Kuonen 1999, "Saddlepoint approximations for distributions of quadratic forms in normal variables".
    """
    # Scaled so that the largest weight is 1.
    weights, x = weights / weights.max(), x / weights.max()
    if x <= 0.0:
        return 1.0
    mean, variance = weights.sum(), 2.0 * np.square(weights).sum()
    if abs(x - mean) < _NEAR * np.sqrt(variance):
        # log(v / w) / w in the formula tends to a sixth of the skewness
        skewness = 8.0 * np.power(weights, 3).sum() / variance**1.5
        return float(special.ndtr(-((x - mean) / np.sqrt(variance) + skewness / 6.0)))

    def slope(zeta: float) -> float:
        """K'(zeta) - x, for K(zeta) = -sum log(1 - 2 zeta weights_j) / 2."""
        return float((weights / (1.0 - 2.0 * zeta * weights)).sum() - x)

    # K' increases: it is below x at -m / (2 x), and at (1 - 1 / (2 x)) / 2 the term of the largest weight alone is 2 x
    above = max((1.0 - 0.5 / x) / 2.0, 0.0)
    zeta = float(optimize.brentq(slope, -len(weights) / (2.0 * x), above, xtol=1e-15, rtol=1e-14))
    shrunk = 1.0 - 2.0 * zeta * weights
    w = np.sign(zeta) * np.sqrt(2.0 * zeta * x + np.log(shrunk).sum())
    v = zeta * np.sqrt(2.0 * np.square(weights / shrunk).sum())
    return float(np.clip(special.ndtr(-(w + np.log(v / w) / w)), 0.0, 1.0))


def bin_differences(counts_a: np.ndarray, counts_b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distance between two samples in each column, and its p value, from counts in bins.

    Parameters
    ----------
    counts_a, counts_b : ndarray of shape (d, bins)
        The weight of the rows in each bin.

    Returns
    -------
    distance : ndarray of shape (d,)
        The Kolmogorov-Smirnov distance at the edges of the bins: the largest difference between the samples' shares of
        rows up to an edge.
    p_values : ndarray of shape (d,)
        p values of Pearson's chi-squared test on the table of samples by bins; 1 for a column with a single bin.
    """
    shares = [np.cumsum(counts, axis=1) / counts.sum(axis=1, keepdims=True) for counts in (counts_a, counts_b)]
    distance = np.abs(shares[0] - shares[1]).max(axis=1)
    statistics, freedom = np.zeros(len(counts_a)), np.zeros(len(counts_a))
    for column, pair in enumerate(zip(counts_a, counts_b, strict=True)):
        table = _joined_bins(np.array(pair))
        expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
        # sum (O - E)^2 / E, chi-squared with (number of bins - 1) degrees of freedom
        statistics[column] = (np.square(table - expected) / expected).sum()
        freedom[column] = table.shape[1] - 1
    p_values = np.where(freedom > 0.0, stats.chi2.sf(statistics, np.maximum(freedom, 1.0)), 1.0)
    return distance, p_values


def name_difference(counts_a: np.ndarray, counts_b: np.ndarray, seed: int = 0) -> float:
    """The p value of the difference between the categories of two samples, also if many categories are rare.

    Pearson's statistic of the table of samples by categories has a chi-squared distribution only if each category has
    several rows. Its mean and variance over all permutations of the rows between the samples are known for any table,
    and the p value is that of a multiple of a chi-squared variable with this mean and variance. If one sample has few
    rows, the statistic takes few values, and the p value is the share of random permutations with a statistic at least
    as large.

    Parameters
    ----------
    counts_a, counts_b : ndarray of shape (V,)
        The weight of the rows of each category.
    seed : int
        Seed of the permutations.

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
        # each category has one row, so that all permutations have the same statistic
        return 1.0
    return float(stats.gamma.sf(statistic, mean**2 / variance, scale=variance / mean))


def _dealt_difference(few: np.ndarray, by_name: np.ndarray, seed: int) -> float:
    """The share of random permutations whose smaller sample differs from the other at least as much as the given one.

    For given sizes of the samples, Pearson's statistic increases with sum_v k_v^2 / n_v, where k_v of the n_v rows of
    category v are in the smaller sample. This is the sum of 1 / n_v over its ordered pairs of rows of equal category.

    Parameters
    ----------
    few, by_name : ndarray of shape (V,)
        The number of rows of each category, in the smaller sample and in both.
    """
    rng = np.random.default_rng(seed)
    n, n_few = int(by_name.sum()), int(few.sum())
    rows = np.empty((_DEALS, n_few), np.int64)
    # sampling without replacement (Floyd 1987): a row drawn before is replaced by the largest possible number
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
    # the given sample counts as one of the permutations; equal sums may differ by rounding
    as_unlike = dealt >= float((np.square(few) / by_name).sum()) * (1.0 - _ROUNDING)
    return float((as_unlike.sum() + 1.0) / (_DEALS + 1.0))


def _joined_bins(table: np.ndarray) -> np.ndarray:
    """The bins (2, bins) with neighbours joined until the smaller sample expects `LEAST_EXPECTED` rows in each."""
    smaller_share = table.sum(axis=1).min() / table.sum()
    joined: list[np.ndarray] = []
    gathered = np.zeros(2)
    for cell in table.T:
        gathered = gathered + cell
        if gathered.sum() * smaller_share >= LEAST_EXPECTED:
            joined.append(gathered)
            gathered = np.zeros(2)
    # the remainder is too small for a bin and joins the last one
    if joined:
        joined[-1] = joined[-1] + gathered
    return np.array(joined or [gathered]).T


def holm(p_values: np.ndarray) -> np.ndarray:
    """p values of several tests, adjusted for their number after Holm (1979).

    If the hypotheses with adjusted values below alpha are rejected, the probability of any false rejection is at most
    alpha, whatever the dependence between the tests.

    Parameters
    ----------
    p_values : ndarray of shape (d,)

    Returns
    -------
    ndarray of shape (d,)
    """
    order = np.argsort(p_values, kind="stable")
    # the smallest of d is multiplied by d, the next by d - 1, and so on; adjusted values never decrease
    steps = np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1))
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(steps, 1.0)
    return adjusted

"""What the functions of `dkl.kernels` mean, written as loops over rows and frequencies under the same names."""

from __future__ import annotations

import cmath
import itertools
import math
from fractions import Fraction
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np
from scipy import sparse, special
from sklearn.linear_model import SGDClassifier, SGDRegressor

from dkl.features.feature_map import FeatureMap
from dkl.features.landmark_projection import LandmarkProjection, SharedLandmarkProjection
from dkl.features.scaling import Scaler
from dkl.kernels.nufft import FrequencyGrid
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.methods.landmarks.kmeans_sums import Centers
from dkl.protocols.block import Block
from tests.definitions import losses
from tests.definitions.refinement import adam_update as adam_update
from tests.definitions.refinement import expansion_gradient as expansion_gradient

MASK = (1 << 64) - 1


def rows_of(X: Any) -> np.ndarray:
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)


def scale_rows(X: Any, scaler: Scaler | None, dtype: str = "float64") -> np.ndarray:
    scaled = rows_of(X).copy()
    if scaler is not None and scaler.kind == "counts":
        for i in range(len(scaled)):
            logs = {j: math.log(1.0 + scaled[i, j]) for j in range(scaled.shape[1]) if not scaler.passthrough[j]}
            length = math.sqrt(sum(value * value for value in logs.values()))
            for j, value in logs.items():
                scaled[i, j] = value / length if length > 0.0 else 0.0
    elif scaler is not None:
        for i in range(len(scaled)):
            for j in range(scaled.shape[1]):
                scaled[i, j] = scaled_number(scaled[i, j], j, scaler)
    return scaled.astype(dtype)


def scaled_number(x: float, column: int, scaler: Scaler) -> float:
    if scaler.passthrough[column]:
        return x
    if scaler.kind == "unit":
        return x / scaler.scale[0]
    if scaler.kind == "quantile":
        assert scaler.knots is not None
        return quantile_score(x, list(scaler.knots[:, column]))
    return (x - scaler.center[column]) / scaler.scale[column]


def quantile_score(x: float, knots: list[float]) -> float:
    """Linear between the scores of neighbouring knots; the mean of the first and last score of tied knots."""
    last = len(knots) - 1
    normal = NormalDist()
    scores = [-3.0, *(min(3.0, max(-3.0, normal.inv_cdf(i / last))) for i in range(1, last)), 3.0]
    equal = [i for i, knot in enumerate(knots) if knot == x]
    if equal:
        return (scores[equal[0]] + scores[equal[-1]]) / 2
    if x < knots[0] or x > knots[-1]:
        return scores[0] if x < knots[0] else scores[-1]
    below = max(i for i, knot in enumerate(knots) if knot < x)
    share = (x - knots[below]) / (knots[below + 1] - knots[below])
    return scores[below] + share * (scores[below + 1] - scores[below])


def angle(x: np.ndarray, j: int, feature_map: FeatureMap, W: np.ndarray) -> float:
    z = math.fsum(float(a) * float(b) for a, b in zip(x, W[j], strict=True))
    return z if feature_map.phases is None else z + float(feature_map.phases[j])


def gegenbauer(n: int, weight: float, t: float) -> float:
    """C_n of the weight (1 - t^2)^(weight - 1/2) as its explicit sum, in exact fractions of the floats given."""
    lam, x = Fraction(weight), Fraction(t)
    total = Fraction(0)
    for i in range(n // 2 + 1):
        rising = math.prod((lam + j for j in range(n - i)), start=Fraction(1))
        total += (-1) ** i * rising * (2 * x) ** (n - 2 * i) / (math.factorial(i) * math.factorial(n - 2 * i))
    return float(total)


@cache
def mean_square(k: int, m: int, n: int) -> float:
    """Of sin^m(theta) C_n(cos theta) for a point that is uniform on the k-sphere, Y_m being of mean square 1."""
    nodes, weights = special.roots_gegenbauer(m + n + 1, (k - 1) / 2)
    values = [(1 - t * t) ** m * gegenbauer(n, m + (k - 1) / 2, t) ** 2 for t in nodes]
    return math.fsum(w * v for w, v in zip(weights, values, strict=True)) / math.fsum(weights)


def harmonic(x: np.ndarray, index: np.ndarray) -> float:
    """Higuchi 1987, (2.3): a wave of the azimuth times one factor for each polar angle, each of mean square 1."""
    orders = [abs(int(entry)) for entry in index]
    azimuth = math.atan2(x[1], x[0]) * orders[0]
    value = 1.0 if orders[0] == 0 else math.sqrt(2) * (math.cos(azimuth) if index[0] > 0 else math.sin(azimuth))
    for k in range(2, len(x)):
        m, degree = orders[k - 2], orders[k - 1]
        radius = math.hypot(*x[: k + 1])
        if radius == 0.0:
            value *= degree == 0
            continue
        t, sine = x[k] / radius, math.hypot(*x[:k]) / radius
        factor = gegenbauer(degree - m, m + (k - 1) / 2, t)
        value *= sine**m * factor / math.sqrt(mean_square(k, m, degree - m))
    return value


def similarity(x: np.ndarray, landmark: int, projection: LandmarkProjection) -> float:
    """Letarte, Morvant & Germain 2019, (13): the weighted mean of the landmark's own cosines."""
    W, total = projection.dense(), 0.0
    for j in range(projection.starts[landmark], projection.starts[landmark + 1]):
        z = math.fsum(float(a) * float(b) for a, b in zip(x, W[j], strict=True)) + projection.phases[j]
        total += projection.weights[j] * math.cos(z)
    return total


def shared_similarity(x: np.ndarray, landmark: int, projection: SharedLandmarkProjection) -> float:
    """The same of frequencies that all landmarks share: a mixture of their cosines and sines."""
    W, total = projection.dense(), 0.0
    for j in range(len(W)):
        z = math.fsum(float(a) * float(b) for a, b in zip(x, W[j], strict=True))
        total += projection.mixing[landmark, j] * math.cos(z) + projection.mixing[landmark, len(W) + j] * math.sin(z)
    return total


def phi(x: np.ndarray, j: int, feature_map: FeatureMap, W: np.ndarray) -> list[float]:
    """The one or two features of frequency j at a scaled row, without amplitude."""
    if feature_map.activation == "harmonics":
        return [harmonic(x / math.hypot(*x), W[j])]
    if isinstance(feature_map.projection, LandmarkProjection):
        return [similarity(x, j, feature_map.projection)]
    if isinstance(feature_map.projection, SharedLandmarkProjection):
        return [shared_similarity(x, j, feature_map.projection)]
    z = angle(x, j, feature_map, W)
    if feature_map.activation == "cos-sin":
        return [math.cos(z), math.sin(z)]
    if feature_map.activation == "cos":
        return [math.cos(z)]
    if feature_map.activation == "arc-cosine":
        return [z**feature_map.order if z > 0 else 0.0]
    return [z]


def map_rows(X: Any, feature_map: FeatureMap, dtype: str = "float64") -> np.ndarray:
    scaled, W = scale_rows(X, feature_map.scaler), feature_map.projection.dense()
    m = feature_map.n_frequencies
    out = np.zeros((len(scaled), feature_map.n_features))
    for i, x in enumerate(scaled):
        for j in range(m):
            for part, value in enumerate(phi(x, j, feature_map, W)):
                out[i, part * m + j] = feature_map.amplitudes[j] * value
    return out.astype(dtype)


def feature_sums(X: Any, S: np.ndarray, feature_map: FeatureMap, dtype: str = "float64") -> np.ndarray:
    return sums_of(map_rows(X, feature_map), S, feature_map)


def sums_of(features: np.ndarray, S: np.ndarray, feature_map: FeatureMap) -> np.ndarray:
    """`feature_sums` of rows that are mapped."""
    parts, m = feature_map.columns_a_frequency, feature_map.n_frequencies
    total = np.zeros((parts, m, S.shape[1]))
    for part in range(parts):
        for j in range(m):
            for k in range(S.shape[1]):
                total[part, j, k] = math.fsum(features[:, part * m + j] * S[:, k])
    return total


def feature_squares(X: Any, s: np.ndarray, feature_map: FeatureMap, dtype: str = "float64") -> np.ndarray:
    return squares_of(map_rows(X, feature_map), s, feature_map)


def squares_of(features: np.ndarray, s: np.ndarray, feature_map: FeatureMap) -> np.ndarray:
    """`feature_squares` of rows that are mapped."""
    parts, m = feature_map.columns_a_frequency, feature_map.n_frequencies
    total = np.zeros((parts, m))
    for part in range(parts):
        for j in range(m):
            total[part, j] = math.fsum(s * features[:, part * m + j] ** 2)
    return total


def potentials(X: Any, S: np.ndarray, W: np.ndarray, dtype: str = "float64") -> np.ndarray:
    """sum_k |sum_i S_ik exp(i w.x_i)|^2."""
    rows, weights = rows_of(X), np.asarray(S, dtype=np.float64).reshape(X.shape[0], -1)
    v = np.zeros(len(W))
    for j, w in enumerate(np.asarray(W, dtype=np.float64)):
        for k in range(weights.shape[1]):
            total = sum(s * cmath.exp(1j * math.fsum(x * w)) for x, s in zip(rows, weights[:, k], strict=True))
            v[j] += abs(total) ** 2
    return v


def potentials_and_gradients(
    X: Any, S: np.ndarray, W: np.ndarray, dtype: str = "float64", *, columns: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """sum over pairs of rows of s_i s_l cos(w.(x_i - x_l)), and its derivative in the entries of W."""
    rows, weights = rows_of(X), np.asarray(S, dtype=np.float64).reshape(X.shape[0], -1)
    places = np.tile(np.arange(rows.shape[1]), (len(W), 1)) if columns is None else columns
    v, gradient = np.zeros(len(W)), np.zeros(W.shape)
    for j in range(len(W)):
        own = [a for a in range(W.shape[1]) if places[j, a] >= 0]
        for x, s in zip(rows, weights, strict=True):
            for y, t in zip(rows, weights, strict=True):
                apart = np.array([x[places[j, a]] - y[places[j, a]] for a in own])
                z = float(apart @ np.array([float(W[j, a]) for a in own]))
                v[j] += float(s @ t) * math.cos(z)
                gradient[j, own] -= float(s @ t) * math.sin(z) * apart
    return v, gradient


def scattered_sums(X: Any, S: np.ndarray, W: np.ndarray, center: np.ndarray) -> np.ndarray:
    """sum_i S_ik cos(w.x_i) and sum_i S_ik sin(w.x_i)."""
    rows = rows_of(X)
    total = np.zeros((2, len(W), S.shape[1]))
    for j, w in enumerate(W):
        for k in range(S.shape[1]):
            angles = [math.fsum(x * w) for x in rows]
            total[0, j, k] = math.fsum(s * math.cos(z) for s, z in zip(S[:, k], angles, strict=True))
            total[1, j, k] = math.fsum(s * math.sin(z) for s, z in zip(S[:, k], angles, strict=True))
    return total


def grid_sums(X: Any, S: np.ndarray, grid: FrequencyGrid) -> np.ndarray:
    """Those at spacing * k, |k_j| <= reach_j, k_0 >= 0."""
    ranges = [range(0 if axis == 0 else -reach, reach + 1) for axis, reach in enumerate(grid.reach)]
    W = np.array([[k * h for k, h in zip(place, grid.spacing, strict=True)] for place in itertools.product(*ranges)])
    return scattered_sums(X, S, W, np.zeros(len(grid.reach)))


def variation_sums(X: Any, S: np.ndarray, half: np.ndarray, center: np.ndarray) -> np.ndarray:
    """sum_i |s_i| |delta.(x_i - c)| at the corners of a cell."""
    rows, found = rows_of(X), []
    for signs in itertools.product((1.0, -1.0), repeat=len(half) - 1):
        delta = np.array([1.0, *signs]) * half
        found.append(
            [math.fsum(abs(s) * abs(delta @ (x - center)) for x, s in zip(rows, column, strict=True)) for column in S.T]
        )
    return np.array(found)


def row_tile(feature_map: FeatureMap, dtype: str = "float32") -> int:
    rows = 1
    while rows < 65_536 and (rows + 1) * feature_map.n_features * np.dtype(dtype).itemsize <= 64 * 2**20:
        rows += 1
    return rows


def encode_targets(block: Block, n_classes: int | None, class_weight: np.ndarray | None = None) -> np.ndarray:
    assert block.y is not None
    rows = []
    for i in range(block.n_rows):
        weight = 1.0 if block.weight is None else float(block.weight[i])
        if n_classes is None:
            rows.append([*(weight * float(target) for target in np.atleast_1d(block.y[i])), weight])
        else:
            factor = 1.0 if class_weight is None else float(class_weight[block.y[i]])
            rows.append([weight * factor if block.y[i] == k else 0.0 for k in range(n_classes)])
    return np.array(rows)


def splitmix(state: int) -> int:
    """One output of splitmix64 (Steele, Lea & Flood 2014) in Python's integers."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def hash_rows(row_id: np.ndarray, seed: int, round: int = 0) -> np.ndarray:
    state = splitmix(splitmix(seed & MASK) ^ (round & MASK))
    return np.array([splitmix(state ^ (int(identity) & MASK)) for identity in row_id], dtype=np.uint64)


def sample_keys(row_id: np.ndarray, weight: np.ndarray | None, seed: int, round: int = 0) -> np.ndarray:
    keys = []
    for i, hashed in enumerate(hash_rows(row_id, seed, round)):
        uniform = ((int(hashed) >> 12) + 0.5) / 2**52
        keys.append(-math.log(uniform) / (1.0 if weight is None else float(weight[i])))
    return np.array(keys)


def smallest_keys(block: Block, k: int, seed: int, round: int = 0, *, each_class: bool = False) -> Block:
    keys = sample_keys(block.row_id, block.weight, seed, round)
    order = sorted(range(block.n_rows), key=lambda i: (keys[i], block.row_id[i]))
    if each_class:
        assert block.y is not None
        codes = sorted(set(block.y.tolist()))
        chosen = [i for code in codes for i in [one for one in order if block.y[one] == code][:k]]
        return block.rows(np.array(chosen, dtype=np.int64))
    return block.rows(np.array(order[:k], dtype=np.int64))


def square_distances(X: Any, points: np.ndarray) -> np.ndarray:
    return np.array([[math.fsum((a - b) ** 2 for a, b in zip(x, c, strict=True)) for c in points] for x in rows_of(X)])


def square_lengths(X: Any) -> np.ndarray:
    return np.array([math.fsum(a * a for a in x) for x in rows_of(X)])


def nearest_centers(X: Any, codes: np.ndarray, centers: Centers) -> tuple[np.ndarray, np.ndarray]:
    distances = square_distances(X, centers.points)
    nearest, least = np.full(len(distances), -1), np.zeros(len(distances))
    for i in range(len(distances)):
        for j in range(len(centers.points)):
            is_allowed = centers.codes is None or centers.codes[j] == codes[i]
            if is_allowed and (nearest[i] < 0 or distances[i, j] < least[i]):
                nearest[i], least[i] = j, distances[i, j]
    return nearest, least


def cluster_sums(block: Block, operands: dict[str, Any]) -> dict[str, Any]:
    centers: Centers = operands["centers"]
    assert block.y is not None
    X = scale_rows(block.X, centers.scaler)
    nearest, distances = nearest_centers(X, block.y, centers)
    points, mass, inertia = np.zeros(centers.points.shape), np.zeros((len(centers.points), centers.n_classes)), 0.0
    for i in range(len(X)):
        factor = 1.0 if centers.class_weight is None else centers.class_weight[block.y[i]]
        weight = factor * (1.0 if block.weight is None else block.weight[i])
        if nearest[i] >= 0:
            points[nearest[i]] += weight * X[i]
            mass[nearest[i], block.y[i]] += weight
            inertia += weight * distances[i]
    return {"points0": points, "mass": mass, "inertia": inertia}


def sgd_rows(X: np.ndarray, Y: np.ndarray, S: np.ndarray, models: SGDModels, *, rule: SGDRule) -> SGDModels:
    """Each model by scikit-learn's `partial_fit` on the rows in their order; means of iterates by one that averages.

    Losses that scikit-learn has no steps of are stepped through literally.
    """
    if rule.loss in ("poisson", "gamma", "pinball", "softmax"):
        return _literal_steps(X, Y, S, models, rule)
    rows = sparse.csr_array(X) if rule.sparse else X
    last = [_stepped(rows, (Y[:, k], S[:, k]), models, rule, k) for k in range(Y.shape[1])]
    coef, b = np.stack([one.coef_.ravel() for one in last]), np.concatenate([one.intercept_ for one in last])
    mean, mean_b = models.average_coef, models.average_intercept
    if rule.average:
        last = [_stepped(rows, (Y[:, k], S[:, k]), models, rule, k, average=rule.average) for k in range(Y.shape[1])]
        mean = np.stack([one._average_coef.ravel() for one in last])
        mean_b = np.concatenate([one._average_intercept for one in last])
    return SGDModels(coef, b, mean, mean_b, models.clock + len(Y))


def _literal_steps(X: np.ndarray, Y: np.ndarray, S: np.ndarray, models: SGDModels, rule: SGDRule) -> SGDModels:
    """w <- max(0, 1 - eta l2) w - eta s L'(y, w.x + b) x, row after row, coefficient by coefficient.

    A row of a log link moves its own score by at most 1. The l1 penalty moves each coefficient towards 0 by what it
    still owes of all there was, where it stops.
    """
    coef, b, mean, mean_b = (
        np.array(part, float) for part in (models.coef, models.intercept, models.average_coef, models.average_intercept)
    )
    (l1, l2), (K, m) = rule.penalties, coef.shape
    paid, debt = np.zeros((K, m)), 0.0
    for i, x in enumerate(X.astype(float)):
        clock = models.clock + i
        eta = rule.eta0 / clock**rule.power_t if rule.learning_rate == "invscaling" else rule.eta0
        debt += l1 * eta
        scores = [sum(coef[k, j] * x[j] for j in range(m)) + b[k] for k in range(K)]
        for k in range(K):
            if rule.loss == "softmax":
                slope = 1.0 / sum(np.exp(other - scores[k]) for other in scores) - (Y[i, k] > 0)
            else:
                slope = losses.slope(Y[i, k], scores[k], rule.loss, rule.epsilon)
            move = -eta * S[i, k] * slope
            if rule.loss in ("poisson", "gamma"):
                longest = 1.0 / (1.0 + sum(value**2 for value in x))
                move = max(-longest, min(longest, move))
            b[k] += rule.intercept_rate * move
            for j in range(m):
                coef[k, j] = max(0.0, 1.0 - eta * l2) * coef[k, j] + move * x[j]
                if l1 and (x[j] or not rule.sparse):
                    before = coef[k, j]
                    if before > 0:
                        coef[k, j] = max(0.0, before - (debt + paid[k, j]))
                    elif before < 0:
                        coef[k, j] = min(0.0, before + (debt - paid[k, j]))
                    paid[k, j] += coef[k, j] - before
            if 0 < rule.average <= clock:
                share = 1.0 / (clock - rule.average + 1.0)
                mean[k] += share * (coef[k] - mean[k])
                mean_b[k] += share * (b[k] - mean_b[k])
    return SGDModels(coef, b, mean, mean_b, models.clock + len(X))


def _stepped(rows: Any, target: Any, models: SGDModels, rule: SGDRule, k: int, *, average: Any = False) -> Any:
    (y, weight), known = target, {}
    options = {name: value for name, value in vars(rule).items() if name not in ("sparse", "average")}
    kind = SGDClassifier if np.isin(y, (-1.0, 1.0)).all() else SGDRegressor
    model = kind(**options, average=average, shuffle=False)
    model.coef_, model.intercept_ = models.coef[k].copy(), models.intercept[k : k + 1].copy()
    model._standard_coef, model._standard_intercept = model.coef_, model.intercept_
    model._average_coef, model._average_intercept = (
        models.average_coef[k].copy(),
        models.average_intercept[k : k + 1].copy(),
    )
    model.t_ = models.clock
    if kind is SGDClassifier:
        known["classes"] = np.array([-1.0, 1.0])
        model.classes_ = known["classes"]
    return model.partial_fit(rows, y, sample_weight=weight, **known)

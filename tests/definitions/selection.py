"""The papers' definitions behind the drivers of `dkl.methods`, written as double loops under the same names."""

from __future__ import annotations

import itertools
import math

import numpy as np
from scipy.optimize import minimize


def indicators(codes: np.ndarray, n_classes: int) -> np.ndarray:
    """One-hot rows."""
    return np.eye(n_classes)[codes]


def similarity(first: int, second: int) -> float:
    """1 within a class, -1 across: y_i y_j of two classes."""
    return 1.0 if first == second else -1.0


def class_alignments(
    features: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray,
    *,
    center: bool = False,
    S: np.ndarray | None = None,
) -> np.ndarray:
    """sum_ij s_ij phi(x_i).phi(x_j) over rows repeated by their weights; features (parts, n, m)."""
    parts, n, size = features.shape
    classes = int(codes.max()) + 1
    marks = indicators(codes, classes)
    if center:
        marks = marks - (weights[:, None] * marks).sum(axis=0) / weights.sum()
    v = np.zeros(size)
    for part, i, j in itertools.product(range(parts), range(n), range(n)):
        if S is not None:
            s = marks[i] @ S @ marks[j]
        else:
            s = 2.0 * marks[i] @ marks[j] if center else similarity(codes[i], codes[j])
        v += weights[i] * weights[j] * s * features[part, i] * features[part, j]
    return v


def class_diagonal(
    features: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray,
    *,
    center: bool = False,
    S: np.ndarray | None = None,
) -> np.ndarray:
    """The terms in which a row meets itself (or one of its repetitions, each itself)."""
    parts, n, size = features.shape
    marks = indicators(codes, int(codes.max()) + 1)
    means = (weights[:, None] * marks).sum(axis=0) / weights.sum()
    diagonal = np.zeros(size)
    for part, i in itertools.product(range(parts), range(n)):
        own = marks[i] - means if center else marks[i]
        if S is not None:
            s = own @ S @ own
        else:
            s = 2.0 * own @ own if center else 1.0
        diagonal += weights[i] * s * features[part, i] ** 2
    return diagonal


def regression_alignments(features: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """sum_ij (y_i - mean)(y_j - mean) phi(x_i).phi(x_j), added over targets; y (n, t)."""
    parts, n, size = features.shape
    residuals = y - np.average(y, axis=0, weights=weights)
    v = np.zeros(size)
    for part, i, j in itertools.product(range(parts), range(n), range(n)):
        v += weights[i] * weights[j] * (residuals[i] @ residuals[j]) * features[part, i] * features[part, j]
    return v


def regression_diagonal(features: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    parts, n, size = features.shape
    residuals = y - np.average(y, axis=0, weights=weights)
    diagonal = np.zeros(size)
    for part, i in itertools.product(range(parts), range(n)):
        diagonal += weights[i] * (residuals[i] @ residuals[i]) * features[part, i] ** 2
    return diagonal


def divergence(q: np.ndarray, k: float = 2.0) -> float:
    """sum_m p f(q_m / p) with p = 1/D and f(t) = t^k - 1."""
    p = 1.0 / len(q)
    return sum(p * ((one / p) ** k - 1.0) for one in q)


def effective_features(q: np.ndarray) -> float:
    return 1.0 / sum(one * one for one in q)


def maximise_alignment(v: np.ndarray, rho: float, k: float = 2.0) -> np.ndarray:
    """Equation (4) by a general solver."""
    size = len(v)
    scaled = (v - v.min()) / max(np.ptp(v), 1e-300)
    found = minimize(
        lambda q: -scaled @ q,
        np.full(size, 1.0 / size),
        jac=lambda q: -scaled,
        bounds=[(0.0, 1.0)] * size,
        constraints=[
            {"type": "eq", "fun": lambda q: q.sum() - 1.0, "jac": lambda q: np.ones(size)},
            {
                "type": "ineq",
                "fun": lambda q: rho - (np.mean((size * np.maximum(q, 0.0)) ** k) - 1.0),
                "jac": lambda q: -k * (size * np.maximum(q, 0.0)) ** (k - 1.0),
            },
        ],
        method="SLSQP",
        options={"ftol": 1e-13, "maxiter": 2_000},
    )
    return found.x


def largest_alignment(v: np.ndarray, rho: float, k: float = 2.0) -> float:
    """The value of (4) by lemma 4: the least over eta of eta + (1 + rho)^(1/k) (mean [v - eta]_+^k*)^(1/k*)."""
    conjugate = k / (k - 1.0)

    def dual(eta: float) -> float:
        return eta + (1.0 + rho) ** (1.0 / k) * np.mean(np.maximum(v - eta, 0.0) ** conjugate) ** (1.0 / conjugate)

    high = float(v.max())
    # below k = 2 weights fall like a power 1 / (k - 1), and eta is that much further away for the same divergence
    low = high - (np.ptp(v) + 1e-12) * (2.0 + 2.0 / math.sqrt(max(rho, 1e-12))) / min(1.0, k - 1.0)
    golden = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(300):
        left, right = high - golden * (high - low), low + golden * (high - low)
        if dual(left) < dual(right):
            high = right
        else:
            low = left
    return min(dual(0.5 * (low + high)), float(v.max()))


def pair_losses(X: np.ndarray, W: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Equation (7) of Letarte, Morvant & Germain: the mean over i != j of (1 - s_ij cos(w.(x_i - x_j)))/2."""
    n = len(X)
    losses = np.zeros(len(W))
    for m, i, j in itertools.product(range(len(W)), range(n), range(n)):
        if i != j:
            losses[m] += (1.0 - similarity(codes[i], codes[j]) * math.cos(W[m] @ (X[i] - X[j]))) / 2.0
    return losses / (n * (n - 1.0))


def pseudo_posterior(losses: np.ndarray, beta: float, n: float) -> np.ndarray:
    """Equation (19), without care for underflow."""
    weights = np.array([math.exp(-beta * math.sqrt(n) * loss) for loss in losses])
    return weights / weights.sum()


def keep_support(weights: np.ndarray) -> np.ndarray:
    """The kernel weight of each candidate under estimator (6)."""
    return weights / weights.sum()


def draw_features(weights: np.ndarray, n_draws: int, points: np.ndarray) -> np.ndarray:
    """The kernel weight of each candidate under estimator (5), given the uniform numbers behind the draws."""
    kept = np.zeros(len(weights))
    for point in points:
        reached, m = 0.0, -1
        while reached <= point * weights.sum() and m < len(weights) - 1:
            m += 1
            reached += weights[m]
        kept[m] += 1.0 / n_draws
    return kept


def choose_features(weights: np.ndarray, n_kept: int) -> str:
    """The paper's rule, section 4."""
    return "(5)" if n_kept < sum(1 for weight in weights if weight > 0.0) else "(6)"


def median_distance(X: np.ndarray, weights: np.ndarray | None = None, *, metric: str = "euclidean") -> float:
    """The median over all pairs of rows, each row repeated as often as its whole weight says."""
    rows = X if weights is None else np.repeat(X, weights.astype(int), axis=0)
    lengths = []
    for i, j in itertools.combinations(range(len(rows)), 2):
        difference = np.abs(rows[i] - rows[j])
        lengths.append(difference.sum() if metric == "cityblock" else math.sqrt((difference**2).sum()))
    return float(np.median(lengths))


def scaler_from_moments(kind: str, X: np.ndarray) -> np.ndarray:
    """The scaled rows themselves."""
    if kind == "standard":
        return (X - X.mean(axis=0)) / X.std(axis=0)
    if kind == "minmax":
        return (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))
    return X / max(math.sqrt(row @ row) for row in X)


def quantile_scaler(column: np.ndarray, value: float) -> float:
    """The share of a column below a value, half of the ties counted."""
    return (np.sum(column < value) + 0.5 * np.sum(column == value)) / len(column)


def heavy_tailed_columns(X: np.ndarray) -> list[int]:
    """Columns whose values beside the median have a kurtosis above 15."""
    heavy = []
    for j in range(X.shape[1]):
        values = X[X[:, j] != np.median(X[:, j]), j]
        if len(values) >= 100:
            centred = values - values.mean()
            if np.mean(centred**4) > 15.0 * np.mean(centred**2) ** 2:
                heavy.append(j)
    return heavy


def column_scales(X: np.ndarray) -> np.ndarray:
    """Standard deviations, column by column."""
    scales = []
    for column in X.T:
        mean = math.fsum(column) / len(column)
        scales.append(math.sqrt(math.fsum((x - mean) ** 2 for x in column) / len(column)))
    return np.array(scales)


def neighbours(X: np.ndarray, column: int) -> list[int]:
    """All columns, those first whose correlation with one is strongest; that one leads."""
    scales = column_scales(X)
    means = [math.fsum(those) / len(those) for those in X.T]
    strengths = []
    for other in range(X.shape[1]):
        products = ((row[column] - means[column]) * (row[other] - means[other]) for row in X)
        strengths.append(abs(math.fsum(products)) / len(X) / scales[column] / scales[other])
    return sorted(range(X.shape[1]), key=lambda other: (other != column, -strengths[other]))


def distinct_peaks(
    frequencies: np.ndarray, potentials: np.ndarray, k: int, cosine: float = 0.9, length: float = 0.2
) -> list[int]:
    """Highest first; one that is nearly a higher one, or its mirror image, is left out."""
    kept: list[int] = []
    for j in sorted(range(len(potentials)), key=lambda j: (-potentials[j], j)):
        w, is_new = frequencies[j], len(kept) < k
        for i in kept:
            u = frequencies[i]
            angle = abs(w @ u) / (math.hypot(*w) * math.hypot(*u))
            if angle >= cosine and abs(math.hypot(*w) / math.hypot(*u) - 1) <= length:
                is_new = False
        if is_new:
            kept.append(j)
    return kept


def pair_potentials(angles: np.ndarray, s: np.ndarray) -> float:
    """sum over rows i != j of s_i.s_j cos(z_i - z_j), relative to the sum of |s_ik s_jk|."""
    value = size = 0.0
    for i, j in itertools.permutations(range(len(angles)), 2):
        value += float(s[i] @ s[j]) * math.cos(angles[i] - angles[j])
        size += float(np.abs(s[i]) @ np.abs(s[j]))
    return value / size


def block_means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    return np.array(
        [np.mean([v for v, g in zip(values, groups, strict=True) if g == one]) for one in sorted(set(groups))]
    )


def largest_blocks(weights: np.ndarray, sizes: np.ndarray, room: int) -> list[int]:
    """Blocks in the order of their weights, each taken if it still fits."""
    chosen: list[int] = []
    for block in sorted(range(len(weights)), key=lambda b: -weights[b]):
        if weights[block] > 0.0 and sum(sizes[one] for one in chosen) + sizes[block] <= room:
            chosen.append(block)
    return sorted(chosen)


def landmark_losses(
    X: np.ndarray, codes: np.ndarray, point: np.ndarray, label: int, W: np.ndarray, left_out: int | None
) -> np.ndarray:
    """Equation (10) of Letarte, Morvant & Germain around one landmark, which is row `left_out` or none of them."""
    losses = np.zeros(len(W))
    others = [j for j in range(len(X)) if j != left_out]
    for m, w in enumerate(W):
        for j in others:
            losses[m] += (1.0 - similarity(label, codes[j]) * math.cos(w @ (point - X[j]))) / 2.0
    return losses / len(others)


def landmark_angles(points: np.ndarray, W: np.ndarray) -> np.ndarray:
    """w.x_l, landmark by landmark; W (L, D, d)."""
    return np.array([[w @ point for w in own] for point, own in zip(points, W, strict=True)])


def similarities(X: np.ndarray, points: np.ndarray, W: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Equation (13): sum_m Q^l_m cos(w_lm.(x_l - x))."""
    out = np.zeros((len(X), len(points)))
    for i, landmark, m in itertools.product(range(len(X)), range(len(points)), range(W.shape[1])):
        out[i, landmark] += weights[landmark, m] * math.cos(W[landmark, m] @ (points[landmark] - X[i]))
    return out


def spread_seeds(X: np.ndarray, chosen: np.ndarray) -> float:
    """What k-means++ makes small: the sum of squared distances to the nearest chosen row."""
    return sum(min(float((x - X[j]) @ (x - X[j])) for j in chosen) for x in X)


def lloyd(X: np.ndarray, points: np.ndarray, rounds: int) -> np.ndarray:
    """Rounds of assignment and means; a centre without rows stays."""
    points = points.copy()
    for _ in range(rounds):
        nearest = [min(range(len(points)), key=lambda j: float((x - points[j]) @ (x - points[j]))) for x in X]
        for j in range(len(points)):
            own = [x for x, where in zip(X, nearest, strict=True) if where == j]
            if own:
                points[j] = sum(own) / len(own)
    return points


def left_out_ridge(kernel: np.ndarray, Y: np.ndarray, penalty: float) -> tuple[np.ndarray, float]:
    """Each row predicted by ridge regression on the others, and the trace of the smoother of all."""
    m = len(Y)
    predictions = np.empty_like(Y)
    for i in range(m):
        others = [j for j in range(m) if j != i]
        dual = np.linalg.solve(kernel[np.ix_(others, others)] + penalty * np.eye(m - 1), Y[others])
        predictions[i] = sum(kernel[i, j] * dual[place] for place, j in enumerate(others))
    smoother = np.linalg.solve(kernel + penalty * np.eye(m), kernel)
    return predictions, float(np.trace(smoother))

"""Block functions of the margin game: dual weights and their sums, a gradient step, breakpoints of the projection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import (
    array_module,
    beside_rows,
    histograms_on_gpu,
    in_float64,
    is_on_gpu,
    sums_on_host,
    tile_rows,
)
from dkl.kernels.maps import map_rows
from dkl.kernels.sums import feature_sums
from dkl.kernels.tiles import spans
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.solvers.losses import HINGES, namespace_of

__all__ = ["breakpoint_sums", "feasible", "primal_losses", "row_scores"]

GameLoss = Literal["hinge", "squared_hinge"]

# limits the mapped rows in memory
_TILE_ROWS = 2048


@dataclass(frozen=True, eq=False)
class GameTargets:
    """Signs and weights of the rows of a block, on the device of its targets, with a column for each dual block.

    Parameters
    ----------
    n_classes : int
        Two classes make one dual block (+1 for the second), K > 2 make K, each class against the rest.
    class_weight : ndarray of shape (K,) or None
        Factors of the rows' weights. A row of weight 2 counts as two rows.
    held_out : callable or None
        From row ids to a mask of held-out rows, which get no dual weights.
    """

    n_classes: int
    class_weight: np.ndarray | None = None
    held_out: Callable[[np.ndarray], np.ndarray] | None = None

    @property
    def n_blocks(self) -> int:
        return 1 if self.n_classes == 2 else self.n_classes

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Signs (n, K), and the weights (n,) of training rows and of held-out rows."""
        xp = namespace_of(block.y)
        codes = xp.asarray(block.y)
        classes = xp.arange(self.n_classes) if self.n_classes > 2 else xp.ones(1)
        # a GPU stores signs as single bytes
        one = 1.0 if xp is np else xp.ones(1, np.int8)
        signs, weight = xp.where(codes[:, None] == classes, one, -one), block.weights
        if self.class_weight is not None:
            weight = weight * xp.take(xp.asarray(self.class_weight), codes)
        # held-out rows stay in the row columns, with weight 0 in every sum of the game
        is_out = xp.zeros(len(codes), bool) if self.held_out is None else xp.asarray(self.held_out(block.held_with))
        return signs, xp.where(is_out, 0.0, weight), xp.where(is_out, weight, 0.0)


@dataclass(frozen=True, eq=False)
class Feasible:
    """The map from stored numbers to feasible dual weights: box [0, upper], sum_i c_i y_i alpha_i = 0.

    Parameters
    ----------
    upper : float
    shifts : ndarray of shape (J, K)
        Multiples of y to subtract: for the exact projection one, before the box; for the alternating one (Algorithm 3)
        each after a box.
    exact : bool
    """

    upper: float
    shifts: np.ndarray
    exact: bool = True

    def __call__(self, values: np.ndarray, signs: np.ndarray) -> np.ndarray:
        return feasible(values, signs, self.upper, self.shifts, exact=self.exact)


def feasible(
    values: np.ndarray, signs: np.ndarray, upper: float, shifts: np.ndarray, *, exact: bool = True
) -> np.ndarray:
    """Dual weights of rows, given the multipliers that reductions over all rows have found.

    Parameters
    ----------
    values : array of shape (n, K)
        Numbers to project; on a GPU if the signs are.
    signs : ndarray of shape (n, K)
        y, -1 or +1.
    upper : float
    shifts : ndarray of shape (J, K)
    exact : bool
        True: clip(values - shifts[0] y, 0, upper), the projection. False: J times clip, then subtract shifts[j] y
        (Bullins, Zhang & Zhang 2018, Algorithm 3), which is feasible only in the limit.

    Returns
    -------
    ndarray of shape (n, K), float64
    """
    xp = namespace_of(values)
    shifts = xp.asarray(shifts)
    if exact:
        return xp.clip(values - shifts[0] * signs, 0.0, upper)
    for shift in shifts:
        values = xp.clip(values, 0.0, upper) - shift * signs
    return values


def breakpoint_sums(
    values: np.ndarray, signs: np.ndarray, weight: np.ndarray, upper: float, edges: np.ndarray
) -> dict[str, np.ndarray]:
    """Sums that give f(mu) = sum_i c_i y_i clip(values_i - mu y_i, 0, upper) at each mu of `edges`.

    f(mu) = c_+ upper - sum_i c_i clip(mu - l_i, 0, upper), where c_+ is the weight of the rows with y = +1, and l_i is
    values_i - upper for them and -values_i for the others. It is piecewise linear with breakpoints l_i and
    l_i + upper, at which its slope changes by -c_i and +c_i.

    Parameters
    ----------
    values, signs : array of shape (n, K)
    weight : array of shape (n,)
        On the host or on a GPU, where the sums then are, too.
    upper : float
    edges : ndarray of shape (K, M), ascending

    Returns
    -------
    dict of ndarray
        "slopes" and "moments" (K, M + 1): sums of c and of c p over the breakpoints p (c negative for l_i + upper), by
        the bin that p is in: bin j holds edges[j - 1] < p <= edges[j]. "breaks" (K, M + 1): their number for c > 0.
        "positive" (K,): c_+. "ends" (2, K): the largest of -l_i and of l_i + upper.
    """
    if is_on_gpu(values):
        return _breakpoint_sums_on_gpu(values, signs, weight, upper, edges)
    K = values.shape[1]
    # the mu at which a row leaves the upper end of the box, and that at which it reaches the lower one
    low = np.where(signs > 0.0, values - upper, -values)
    points = np.concatenate([low, low + upper])
    change = np.concatenate([weight, -weight])
    counted = (change != 0.0).astype(np.float64)
    size = edges.shape[1] + 1
    sums = {name: np.zeros((K, size)) for name in ("slopes", "moments", "breaks")}
    for k in range(K):
        bins = np.searchsorted(edges[k], points[:, k], side="left")
        sums["slopes"][k] = np.bincount(bins, change, size)
        sums["moments"][k] = np.bincount(bins, change * points[:, k], size)
        sums["breaks"][k] = np.bincount(bins, counted, size)
    sums["positive"] = weight @ (signs > 0.0)
    # the outermost breakpoints of training rows bracket every multiplier; -inf if the block has no training rows
    in_training = np.where(weight[:, None] > 0.0, low, np.nan)
    sums["ends"] = np.full((2, K), -np.inf)
    if (weight > 0.0).any():
        sums["ends"] = np.stack([np.nanmax(-in_training, axis=0), np.nanmax(in_training + upper, axis=0)])
    return sums


def _breakpoint_sums_on_gpu(values: Any, signs: Any, weight: Any, upper: float, edges: np.ndarray) -> dict[str, Any]:
    """`breakpoint_sums` of rows on a GPU, by one histogram for each dual block."""
    xp, (n, K) = array_module(values), values.shape
    low = xp.where(signs > 0.0, values - upper, -values)
    points, twice = xp.concat([low, low + upper]), xp.concat([weight, weight])[:, None]
    change = xp.concat([weight, -weight])[:, None]
    # the first of these sums counts training rows only: those of a weight above 0
    summed = xp.concat([twice, change, xp.ones((2 * n, 1)), change * points], axis=1)
    # an edge beyond the last one, for the bin of all breakpoints above it
    tables = np.pad(edges, ((0, 0), (0, 1)), constant_values=np.inf), np.full(K, edges.shape[1])
    sums = histograms_on_gpu(points, tables, (xp.ones((2 * n, 1)), np.zeros(1, np.int64)), summed)[0]
    own = xp.arange(K)
    played = weight[:, None] > 0.0
    highest = (xp.where(played, part, -np.inf).max(axis=0) for part in (-low, low + upper))
    return {
        "slopes": sums[:, :, 1],
        "breaks": sums[:, :, 2],
        "moments": sums[own, :, 3 + own],
        "positive": weight @ (signs > 0.0).astype(np.float64),
        "ends": xp.stack(list(highest)),
    }


def row_scores(X: Rows, feature_map: FeatureMap, coefficients: np.ndarray, dtype: str = "float32") -> Any:
    """sum_j phi_j(x_i) coefficients[j, k] of each row, computed in tiles on the rows' device: float64 (n, K).

    Parameters
    ----------
    X : ndarray, csr_array or CuPy array of shape (n, d)
    feature_map : FeatureMap
    coefficients : ndarray of shape (n_features, K)
    dtype : {"float32", "float64"}
        Precision of the mapped rows.
    """
    xp = array_module(X)
    scores = xp.empty((X.shape[0], coefficients.shape[1]))
    # a product of float32 features with float64 coefficients would copy every tile
    models = xp.asarray(coefficients.astype(dtype))
    step = tile_rows(feature_map.n_features, models.itemsize) if is_on_gpu(X) else _TILE_ROWS
    for rows in spans(len(scores), step):
        scores[rows] = map_rows(X[rows], feature_map, dtype) @ models
    return scores


def primal_losses(
    scores: np.ndarray, signs: np.ndarray, weight: np.ndarray, trials: Trials, *, loss: GameLoss
) -> np.ndarray:
    """Hinge losses of f = scale * score + intercept for every combination of scale and intercept, summed over rows.

    Parameters
    ----------
    scores, signs : array of shape (n, K)
        On the host or on a GPU, where the sums then are, too.
    weight : array of shape (n,)
    trials : Trials
    loss : {"hinge", "squared_hinge"}

    Returns
    -------
    ndarray of shape (K, S, B), float64
    """
    S, (K, B) = len(trials.scales), trials.intercepts.shape
    if is_on_gpu(scores):
        return _primal_losses_on_gpu(scores, signs, weight, trials, loss=loss)
    losses = np.zeros((K, S, B))
    for k in range(K):
        for s, scale in enumerate(trials.scales):
            margin = signs[:, k] * scores[:, k] * scale
            for b in range(B):
                # 1 - y (scale f + b): the hinge losses are functions of this slack
                slack = 1.0 - margin - signs[:, k] * trials.intercepts[k, b]
                losses[k, s, b] = weight @ HINGES[loss].of_slack(slack)
    return losses


def _primal_losses_on_gpu(scores: Any, signs: Any, weight: Any, trials: Trials, *, loss: GameLoss) -> Any:
    """`primal_losses` of rows on a GPU: all machines at once, on as many rows as its memory allows."""
    xp, S, (K, B) = array_module(scores), len(trials.scales), trials.intercepts.shape
    scales, intercepts = xp.asarray(trials.scales), xp.asarray(trials.intercepts)
    losses = xp.zeros((K, S, B))
    for rows in spans(len(scores), tile_rows(K * S * B, losses.itemsize)):
        # margins (n, K, S), and slacks (n, K, S, B)
        margin = (signs[rows] * scores[rows])[:, :, None] * scales
        slack = 1.0 - margin[..., None] - (signs[rows][:, :, None] * intercepts)[:, :, None, :]
        each = HINGES[loss].of_slack(slack)
        losses += xp.reshape(weight[rows] @ xp.reshape(each, (len(each), K * S * B)), (K, S, B))
    return losses


@dataclass(frozen=True, eq=False)
class Trials:
    """Linear machines that a pass tries: every scale with every intercept of its class.

    Parameters
    ----------
    scales : ndarray of shape (S,)
    intercepts : ndarray of shape (K, B)
    """

    scales: np.ndarray
    intercepts: np.ndarray


@dataclass(frozen=True, eq=False)
class DualStep:
    """One step of the dual player along the features of a round, whose scores enter the rows' columns.

    Parameters
    ----------
    feature_map : FeatureMap
        The features of the round.
    coefficients : ndarray of shape (n_features, K)
        The response f_i = sum_j coefficients[j] phi_j(x_i); the gradient is 1 - y_i f_i - ridge alpha_i.
    size : float
        eta, the length of the step.
    share : float
        Share of this round in the means over all rounds so far.
    ridge : float
        1 / C' of the squared hinge, 0 of the hinge.
    dtype : {"float32", "float64"}
    """

    feature_map: FeatureMap
    coefficients: np.ndarray
    size: float
    share: float
    ridge: float = 0.0
    dtype: str = "float32"

    def __call__(self, X: Rows, alpha: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Dual weights after a gradient step, alpha + eta gradient, not yet projected, and scores f: both (n, K)."""
        scores = row_scores(X, self.feature_map, self.coefficients, self.dtype)
        return alpha + self.size * (1.0 - signs * scores - self.ridge * alpha), scores


def start_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The initial dual weights, the same for all rows and not yet feasible, and their breakpoints.

    Operands: "targets" (GameTargets), "upper", "start", "edges".
    """
    (signs, weight, _), xp = _arrays(operands["targets"], block), array_module(block.X)
    values = xp.full(signs.shape, operands["start"])
    sums = breakpoint_sums(values, signs, weight, operands["upper"], operands["edges"])
    return sums_on_host({"dual": values, "weight": xp.asarray(weight.sum()), **sums})


def multiplier_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Breakpoints between finer edges. Operands: "targets", "upper", "edges"."""
    signs, weight, _, dual = _arrays(operands["targets"], block, "dual")
    return sums_on_host(breakpoint_sums(dual, signs, weight, operands["upper"], operands["edges"]))


def balance_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """sum_i c_i y_i clip(alpha_i, 0, upper), which the next alternation subtracts. Operands: "targets", "feasible"."""
    signs, weight, _, dual = _arrays(operands["targets"], block, "dual")
    alpha = array_module(block.X).clip(operands["feasible"](dual, signs), 0.0, operands["feasible"].upper)
    return sums_on_host({"balance": weight @ (signs * alpha)})


def _arrays(targets: Any, block: Block, *names: str) -> list[Any]:
    """Signs, weights of training and of held-out rows, and row columns, on the device of the block's rows."""
    xp = array_module(block.X)
    given = in_float64(beside_rows(block, "game", targets))
    return [*given, *(xp.asarray(block.columns[name]) for name in names)]


def verify_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums of the candidates' features under the dual weights, and of the weights themselves.

    Operands: "targets", "feasible", "candidates" (FeatureMap), "dtype"; with "checks_mean" K more columns hold the sums
    under the mean dual weights.
    """
    signs, weight, _, dual, mean = _arrays(operands["targets"], block, "dual", "mean")
    alpha, xp = operands["feasible"](dual, signs), array_module(block.X)
    bounds = _at_bounds(alpha, weight, operands["feasible"].upper)
    if operands["checks_mean"]:
        alpha, signs = xp.concat([alpha, mean], axis=1), xp.concat([signs, signs], axis=1)
    duals = weight[:, None] * signs * alpha
    return sums_on_host(
        {
            "features": feature_sums(block.X, duals, operands["candidates"], operands["dtype"], stay=True),
            "alpha": weight @ alpha,
            "squares": weight @ (alpha * alpha),
            "bounds": bounds,
        }
    )


def _at_bounds(alpha: Any, weight: Any, upper: float) -> Any:
    """The numbers of rows at the lower end of the box (no support vectors) and at the upper one, (2,)."""
    xp = namespace_of(alpha)
    ends = [weight @ (alpha <= 0.0).astype(np.float64), weight @ (alpha >= upper).astype(np.float64)]
    return xp.stack(ends).sum(axis=1)


@dataclass(frozen=True, eq=False)
class Smoothed:
    """The vector that the excessive gap technique projects: keep * alpha + size * (1 - y f).

    Parameters
    ----------
    keep, size : float
    """

    keep: float
    size: float


def gram_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """sum_i c_i phi_i phi_i' of all features, and the weight of either sign in each dual block, (2, K).

    Operands: "targets", "feature_map", "dtype".
    """
    signs, weight, _ = _arrays(operands["targets"], block)
    feature_map = operands["feature_map"]
    # in float64, since its largest eigenvalue is a divisor and rounding must not make it too small
    xp = array_module(block.X)
    gram = xp.zeros((feature_map.n_features, feature_map.n_features))
    step = tile_rows(feature_map.n_features, gram.itemsize) if is_on_gpu(block.X) else _TILE_ROWS
    for rows in spans(block.n_rows, step):
        phi = map_rows(block.X[rows], feature_map, operands["dtype"]).astype(np.float64)
        gram += (phi * weight[rows][:, None]).T @ phi
    classes = xp.stack([weight @ is_side.astype(np.float64) for is_side in (signs < 0.0, signs > 0.0)])
    return sums_on_host({"gram": gram, "classes": classes})


def score_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Score rows with a machine on all features, write the next column to project, and sum the machine's losses.

    Operands: "targets", "upper", "feature_map", "coefficients", "smoothed" (Smoothed), "edges", "trials" (Trials),
    "loss", "dtype".
    """
    signs, weight, _, hat = _arrays(operands["targets"], block, "hat")
    scores = row_scores(block.X, operands["feature_map"], operands["coefficients"], operands["dtype"])
    smoothed: Smoothed = operands["smoothed"]
    trials: Trials = operands["trials"]
    # the gradient of 1'alpha - <alpha, A w> in alpha is 1 - y f
    values, xp = smoothed.keep * hat + smoothed.size * (1.0 - signs * scores), array_module(block.X)
    return sums_on_host(
        {
            "dual": values,
            "losses": primal_losses(scores, signs, weight, trials, loss=operands["loss"]),
            "errors": xp.asarray(weight @ _wrong(scores + xp.asarray(trials.intercepts[:, 0]), signs)),
            **breakpoint_sums(values, signs, weight, operands["upper"], operands["edges"]),
        }
    )


def sum_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The feature sums of the projected weights and of their mixture with those in a column, which replaces the column.

    Operands: "targets", "feasible", "candidates", "dtype", "share", "target".
    """
    signs, weight, _, dual, before = _arrays(operands["targets"], block, "dual", "mean")
    # rows of weight 0 enter no sum, and users see their dual weight as 0
    alpha = operands["feasible"](dual, signs) * (weight > 0.0)[:, None]
    # (1 - tau) alpha_pair + tau alpha: the intermediate point, or the new pair
    mixed, duals = (1.0 - operands["share"]) * before + operands["share"] * alpha, weight[:, None] * signs * alpha
    return sums_on_host(
        {
            "features": feature_sums(block.X, duals, operands["candidates"], operands["dtype"], stay=True),
            "alpha": weight @ mixed,
            "squares": weight @ (mixed * mixed),
            "bounds": _at_bounds(mixed, weight, operands["feasible"].upper),
            operands["target"]: mixed,
        }
    )


def step_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The dual step of a round on the rows of a block, the means over rounds, and the losses of their primal machine.

    Operands: "targets", "feasible", "step" (DualStep), "edges", "trials" (Trials), "loss".
    """
    signs, weight, held_out, dual, mean, score = _arrays(operands["targets"], block, "dual", "mean", "score")
    step: DualStep = operands["step"]
    alpha, xp = operands["feasible"](dual, signs), array_module(block.X)
    values, scores = step(block.X, alpha, signs)
    # Means over the rounds, weighted by t eta: their regret bounds the gap. The mean of the scores is the score of the
    # mean machine, so that no pass maps rows to all features of the game again.
    played = alpha * (weight > 0.0)[:, None]
    mean = (1.0 - step.share) * mean + step.share * played
    total = (1.0 - step.share) * score + step.share * scores
    trials: Trials = operands["trials"]
    first = trials.scales[0] * total + xp.asarray(trials.intercepts[:, 0])
    errors = [weight @ _wrong(first, signs), held_out @ _wrong(first, signs), held_out.sum()]
    return sums_on_host(
        {
            "dual": values,
            "mean": mean,
            "score": total,
            "losses": primal_losses(total, signs, weight, trials, loss=operands["loss"]),
            "errors": xp.stack([xp.asarray(error) for error in errors]),
            "held": xp.asarray(held_out @ HINGES[operands["loss"]].value(signs, first).sum(axis=1)),
            "gradient": weight @ xp.square(1.0 - signs * scores - step.ridge * alpha).sum(axis=1, keepdims=True),
            **breakpoint_sums(values, signs, weight, operands["feasible"].upper, operands["edges"]),
        }
    )


def _wrong(scores: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """1 for each row whose predicted class is not its own."""
    if signs.shape[1] == 1:
        return (signs[:, 0] * scores[:, 0] <= 0.0).astype(np.float64)
    return (scores.argmax(axis=1) != signs.argmax(axis=1)).astype(np.float64)

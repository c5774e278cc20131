"""What the functions of a block return, as loops over its rows, under the same names.

Each takes the block and the operands that the function itself takes. Where a method's sums have a
definition in a module of their own, that one is used.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.linear.temperature import MULTIPLIERS
from dkl.protocols.block import Block
from tests.definitions import explain, leverage, linear, losses, tuned
from tests.definitions.blocks import (
    encode_targets,
    feature_squares,
    feature_sums,
    grid_sums,
    map_rows,
    rows_of,
    scale_rows,
    scattered_sums,
    variation_sums,
)
from tests.definitions.steps import atoms

Operands = Mapping[str, Any]
Sums = dict[str, Any]


def weights_of(block: Block) -> list[float]:
    return [1.0] * block.n_rows if block.weight is None else [float(weight) for weight in block.weight]


def squares_block(block: Block, operands: Operands) -> Sums:
    """sum_i s_i phi_j(x_i)^2."""
    return {"squares": feature_squares(block.X, np.array(weights_of(block)), operands["feature_map"])}


def gram_block(block: Block, operands: Operands) -> Sums:
    """sum_i s_i phi_a(x_i) phi_b(x_i) for a <= b, packed; the last feature is 1."""
    weights = np.array(weights_of(block))
    return {"gram": leverage.gram_sums(block.X, weights, operands["feature_map"], operands["columns"])}


def cross_gram_block(block: Block, operands: Operands) -> Sums:
    """sum_i s_i phi_a(x_i) psi_b(x_i)."""
    return {
        "cross": leverage.cross_gram_sums(block.X, np.array(weights_of(block)), operands["first"], operands["second"])
    }


def peak_weights(block: Block, targets: Any) -> np.ndarray:
    """S: s_i (1{y_i = k} - share_k) of classes, s_i (y_ik - mean_k) / deviation_k of targets."""
    encoded, out = encode_targets(block, targets.n_classes, targets.class_weight), []
    for row in encoded:
        if targets.n_classes is None:
            centred = [(y - m * row[-1]) / d for y, m, d in zip(row[:-1], targets.center, targets.scale, strict=True)]
        else:
            centred = [s - share * math.fsum(row) for s, share in zip(row, targets.center, strict=True)]
        # the two classes of a binary problem mirror each other
        out.append(centred[:1] if targets.n_classes == 2 else centred)
    return np.array(out)


def peak_sums(block: Block, operands: Operands) -> Sums:
    """Features times S; sums of |S_ik| and of S_ik^2 / s_i."""
    S, weights = peak_weights(block, operands["targets"]), weights_of(block)
    absolutes, squares = np.zeros(S.shape[1]), np.zeros(S.shape[1])
    for i in range(len(S)):
        for k in range(S.shape[1]):
            absolutes[k] += abs(S[i, k])
            squares[k] += S[i, k] ** 2 / weights[i]
    return {"features": feature_sums(block.X, S, operands["feature_map"]), "absolutes": absolutes, "squares": squares}


def cell_sums(block: Block, operands: Operands) -> Sums:
    """sum_i S_ik (cos, sin)(w.x_i) at the first grid, with what it may vary within a cell, or at middles of cells."""
    problem = operands["problem"]
    rows, S = scale_rows(block.X, problem.origin.scaler), peak_weights(block, problem.targets)
    if operands["cells"] is not None:
        return {"features": scattered_sums(rows, S, operands["cells"], problem.center)}
    return {
        "features": grid_sums(rows, S, problem.grid),
        "variation": variation_sums(rows, S, problem.grid.spacing / 2.0, problem.center),
        "absolutes": np.array([math.fsum(abs(s) for s in column) for column in S.T]),
    }


def potential_sums(block: Block, operands: Operands) -> Sums:
    """sum_i t_ik phi_j(x_i), sum_i t_ik, and of features of one column sum_i u_ik phi_j(x_i)^2 where asked."""
    problem = operands["problem"]
    targets = encode_targets(block, problem.n_classes, problem.class_weight)
    squares = []
    for row in targets:
        weight = row[-1]
        if problem.n_classes is None:
            for k in range(len(row) - 1):
                row[k] -= (0.0 if problem.pivot is None else problem.pivot[k]) * weight
            squares.append([*(y * y / weight for y in row[:-1]), *row])
        else:
            squares.append(list(row))
    found = {
        "targets": np.array([math.fsum(column) for column in targets.T]),
        "features0": feature_sums(block.X, targets, problem.candidates),
    }
    if problem.needs_squares:
        u = np.array(squares)
        each = [feature_squares(block.X, u[:, k], problem.candidates) for k in range(u.shape[1])]
        found["squares0"] = np.stack(each, axis=2)
    return found


def sums_by_fold(block: Block, operands: Operands) -> Sums:
    """`potential_sums` of the rows of each fold, and last of the rows that no fold holds."""
    folds = operands["folds"]
    number, out = folds(block.row_id), []
    for fold in (*range(folds.count), -1):
        own = [i for i in range(block.n_rows) if number[i] == fold]
        if own:
            out.append(potential_sums(block.rows(np.array(own)), operands))
        else:
            some = potential_sums(block, operands)
            out.append({name: np.zeros_like(value) for name, value in some.items()})
    return {name: np.stack([one[name] for one in out]) for name in out[0]}


def wave_sums(block: Block, operands: Operands) -> Sums:
    """sum_i s_i cos(w.x_i) and sum_i s_i sin(w.x_i) of the columns of each part."""
    weights, out = weights_of(block), []
    for part in operands["parts"]:
        rows = scale_rows(np.asarray(block.X)[:, part.columns], part.feature_map.scaler)
        W = part.feature_map.projection.dense()
        out.append(scattered_sums(rows, np.array(weights)[:, None], W, np.zeros(rows.shape[1]))[:, :, 0])
    return {"sums": np.stack(out), "weight": math.fsum(weights)}


def sums_without(block: Block, operands: Operands) -> Sums:
    """The waves of rows whose columns of a group are 0."""
    weights = np.array(weights_of(block))
    found = explain.left_out_sums(block.X, weights, operands["feature_map"], operands["groups"])
    return {"sums": found, "weight": math.fsum(weights)}


def column_sums(block: Block, operands: Operands) -> Sums:
    """sum_i s_i x_ic of scaled rows."""
    rows, weights = scale_rows(block.X, operands["scaler"]), weights_of(block)
    first = [math.fsum(s * x for s, x in zip(weights, column, strict=True)) for column in rows.T]
    return {"first": np.array(first), "weight": math.fsum(weights)}


def slope_sums(block: Block, operands: Operands) -> Sums:
    """sum_i s_i (df_k/dx_c)^2, and the first two moments of scaled columns."""
    machine, weights = operands["machine"], weights_of(block)
    rows = scale_rows(block.X, machine.feature_map.scaler)
    second = [math.fsum(s * x * x for s, x in zip(weights, column, strict=True)) for column in rows.T]
    return {
        **column_sums(block, {"scaler": machine.feature_map.scaler}),
        "second": np.array(second),
        "slopes": explain.squared_slopes(block.X, np.array(weights), machine.feature_map, machine.coef),
    }


def row_values(block: Block, targets: Any) -> tuple[np.ndarray, list[float]]:
    """Targets of the models and weights of the rows: signs of classes, standardised numbers; weights of mean 1."""
    weights, values = weights_of(block), []
    assert block.y is not None
    for i in range(block.n_rows):
        weights[i] *= targets.weight_scale if block.weight is not None or targets.class_weight is not None else 1.0
        if targets.classes is None:
            values.append(np.atleast_1d((block.y[i] - targets.center) / targets.scale))
            continue
        weights[i] *= 1.0 if targets.class_weight is None else targets.class_weight[block.y[i]]
        K = len(targets.classes)
        values.append([1.0 if block.y[i] == k else -1.0 for k in ([1] if K == 2 else range(K))])
    return np.array(values), weights


def held_out_loss(block: Block, operands: Operands) -> Sums:
    """sum_i s_i sum_k l(y_ik, f_k(x_i)) over the held-out rows, and sum_i s_i.

    Where the rows calibrate, also sum_i s_i of the log loss of softmax(a f(x_i)), its slope and its curvature in log a,
    for each multiplier a, where the s_i are without their common scale.
    """
    targets = operands["targets"]
    values, weights = row_values(block, targets)
    phi, held = map_rows(block.X, operands["feature_map"]), operands["held_out"].mask(block.row_id)
    loss = total = counted = 0.0
    label, uniform = np.zeros((3, len(MULTIPLIERS))), np.zeros((3, len(MULTIPLIERS)))
    for i in range(block.n_rows):
        if not held[i]:
            continue
        total += weights[i]
        scores = []
        for k, w in enumerate(operands["coef"]):
            scores.append(math.fsum(w * phi[i]) + operands["intercept"][k])
            loss += weights[i] * losses.value(float(values[i][k]), scores[k], operands["loss"], operands["epsilon"])
        if operands["calibrated"]:
            s = weights[i] / targets.weight_scale
            counted += s
            for t, a in enumerate(MULTIPLIERS):
                own, mean = calibration(scores, block.y[i], a)
                label[:, t], uniform[:, t] = label[:, t] + s * own, uniform[:, t] + s * mean
    sums = {"loss": np.array([loss]), "weight": np.array([total])}
    if operands["calibrated"]:
        sums |= {"label": label, "uniform": uniform, "counted": np.array([counted])}
    return sums


def target_sums(block: Block, operands: Operands) -> Sums:
    """Weight and sums of the targets (1 at a row's class and 0 elsewhere), and how many rows there are."""
    held_out, n_classes = operands["held_out"], operands["n_classes"]
    out = np.zeros(block.n_rows, bool) if held_out is None else held_out.mask(block.row_id)
    assert block.y is not None
    weight, n, sums = 0.0, 0, 0.0
    for i, s in enumerate(weights_of(block)):
        if out[i]:
            continue
        value = np.atleast_1d(block.y[i]) if n_classes is None else np.eye(n_classes)[block.y[i]]
        s *= 1.0 if n_classes is None or operands["class_weight"] is None else operands["class_weight"][block.y[i]]
        weight, n, sums = weight + s, n + 1, sums + s * value
    return {"weight": weight, "sums": sums, "rows": float(n), "blocks": float(n > 0)}


def block_moments(block: Block, operands: Operands) -> Sums:
    """Sums, squared differences from the block's mean, and extremes of its columns; the largest norm of a row."""
    rows, weights = rows_of(block.X), weights_of(block)
    weight, columns = math.fsum(weights), range(rows.shape[1])
    sums = [math.fsum(s * x for s, x in zip(weights, rows[:, c], strict=True)) for c in columns]
    within = [
        math.fsum(s * (x - sums[c] / weight) ** 2 for s, x in zip(weights, rows[:, c], strict=True)) for c in columns
    ]
    scaled = operands.get("scaled", np.ones(rows.shape[1], bool))
    return {
        "weight": weight,
        "sums": np.array(sums),
        "within": np.array(within),
        "between": np.array([weight * (total / weight) ** 2 for total in sums]),
        "high": np.array([max(rows[:, c]) for c in columns]),
        "depth": np.array([max(-rows[:, c]) for c in columns]),
        "norm": max(math.hypot(*row[scaled]) for row in rows),
    }


def column_counts(block: Block, operands: Operands) -> Sums:
    """The weight of the rows whose value in a column lies above just so many of its edges."""
    rows, weights = rows_of(block.X), weights_of(block)
    edges, n_edges = operands["edges"], operands["n_edges"]
    counts = np.zeros((len(edges), edges.shape[1] + 1))
    for j in range(len(edges)):
        for b in range(edges.shape[1] + 1):
            inside = [sum(x > edges[j, e] for e in range(n_edges[j])) == b for x in rows[:, j]]
            counts[j, b] = math.fsum(s for s, counted in zip(weights, inside, strict=True) if counted)
    return {"counts": counts}


def newton_targets(block: Block, targets: Any) -> tuple[np.ndarray, np.ndarray]:
    """What each model is to predict of each row, and the row's weight for it: 0 where the model does not see it."""
    weights = weights_of(block)
    folds = None if targets.folds is None else targets.folds(block.row_id)
    values, seen = np.empty((2, block.n_rows, len(targets.models)))
    assert block.y is not None
    for i in range(block.n_rows):
        for k, model in enumerate(targets.models):
            seen[i, k] = weights[i]
            if targets.kept is not None and not targets.kept(block.row_id)[i]:
                seen[i, k] = 0.0
            if folds is not None and (folds[i] == -2 or (folds[i] >= 0 and folds[i] == targets.fold[k])):
                seen[i, k] = 0.0
            if targets.n_classes is None:
                values[i, k] = (np.atleast_1d(block.y[i])[model] - targets.center[model]) / targets.scale[model]
            else:
                seen[i, k] *= 1.0 if targets.class_weight is None else targets.class_weight[block.y[i]]
                values[i, k] = 1.0 if block.y[i] == model else -1.0
    return values, seen


def newton_block(block: Block, operands: Operands) -> Sums:
    """Losses at every step and gradients at the first; columns of the Hessians, packed, over the loss's curvature."""
    options, (start, stop) = operands["options"], operands["options"].columns
    values, weights = newton_targets(block, operands["targets"])
    phi = np.column_stack([map_rows(block.X, operands["feature_map"]), np.ones(block.n_rows)])
    sums = linear.newton_sums(phi, values, weights, operands["trial"], options.loss)
    curvature = 2.0 if options.loss == "squared_hinge" else 1.0
    panels = [
        [sums["hessian"][k][a, b] / curvature for b in range(start, stop) for a in range(b + 1)]
        for k in options.hessian_of
    ]
    return sums | {"hessian": np.array(panels)}


def softmax_block(block: Block, operands: Operands) -> Sums:
    """The log loss -log p_y of p_k = exp(f_k) / sum_l exp(f_l) at every step, its gradient, and the Gram matrix."""
    trial, (start, stop) = operands["trial"], operands["options"].columns
    _, weights = newton_targets(block, operands["targets"])
    weights = weights[:, 0]
    phi = np.column_stack([map_rows(block.X, operands["feature_map"]), np.ones(block.n_rows)])
    K, width = trial.coefficients.shape
    loss, gradient, gram = np.zeros(trial.steps.shape), np.zeros((K, width)), np.zeros((width, width))
    assert block.y is not None
    for i in range(block.n_rows):
        gram += weights[i] * np.outer(phi[i], phi[i])
        for t, step in enumerate(trial.steps[0]):
            scores = (trial.coefficients + step * trial.directions) @ phi[i]
            p = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
            loss[0, t] -= weights[i] * np.log(p[block.y[i]])
            for k in range(K if t == 0 else 0):
                gradient[k] += weights[i] * (p[k] - (block.y[i] == k)) * phi[i]
    return {"loss": loss, "gradient": gradient, "hessian": packed(gram, (start, stop))[None]}


def model_targets(block: Block, targets: Any) -> tuple[np.ndarray, np.ndarray]:
    """What a `NewtonTargets` stands for: 1 or -1 for each class against the rest or standardised numbers; weights."""
    values, weights = np.zeros((block.n_rows, len(targets.models))), weights_of(block)
    assert block.y is not None
    for i in range(block.n_rows):
        for place, model in enumerate(targets.models):
            if targets.n_classes is None:
                y = float(np.atleast_1d(block.y[i])[model])
                center = 0.0 if targets.center is None else targets.center[model]
                values[i, place] = (y - center) / (1.0 if targets.scale is None else targets.scale[model])
            else:
                values[i, place] = 1.0 if block.y[i] == model else -1.0
        if targets.class_weight is not None:
            weights[i] *= targets.class_weight[block.y[i]]
    return values, np.array(weights)


def packed(whole: np.ndarray, columns: tuple[int, int]) -> np.ndarray:
    """The upper triangle of some columns of a symmetric matrix, column by column."""
    return np.array([whole[i, j] for j in range(*columns) for i in range(j + 1)])


def squared_block(block: Block, operands: Operands) -> Sums:
    """Fold by fold the sums that the squared error of every linear model depends on."""
    values, weight = model_targets(block, operands["targets"])
    folds = np.zeros(block.n_rows, int) if operands["folds"] is None else operands["folds"](block.row_id)
    phi = map_rows(block.X, operands["feature_map"])
    found = tuned.squared_sums(phi, values, weight, folds, operands["n_folds"])
    gram = np.stack([packed(whole, operands["columns"]) for whole in found.pop("gram")])
    return {"gram": gram, **(found if operands["first"] else {})}


def margin_block(block: Block, operands: Operands) -> Sums:
    """Losses at trial steps, dual weights by side, and packed Hessians sum_i c_ik (phi_i, 1)(phi_i, 1)'."""
    options, kept = operands["options"], operands["sample"](block.row_id)
    block = block.rows(np.array([i for i in range(block.n_rows) if kept[i]]))
    values, weight = model_targets(block, operands["targets"])
    phi = map_rows(block.X, operands["feature_map"])
    trial, smoothing = operands["trial"], operands["smoothing"]
    found, curvature = tuned.margin_sums(phi, values, weight, trial, smoothing, options.loss)
    hessian = []
    for k in options.hessian_of:
        whole = np.zeros((phi.shape[1] + 1, phi.shape[1] + 1))
        for i in range(block.n_rows):
            row = np.append(phi[i], 1.0)
            whole += curvature[i, k] * np.outer(row, row)
        hessian.append(packed(whole, options.columns))
    return {**found, "weight": np.array([math.fsum(weight)]), "hessian": np.stack(hessian)}


def judging_sums(block: Block, operands: Operands) -> Sums:
    """The loss, and over the duals a = -l'(f) of either sign the sums of |a|, a y, a^2 and a (phi, 1).

    Of the hinge, whose slope jumps at y f = 1, also for slopes that reach 1 over a width beyond the kink.
    """
    values, weight = model_targets(block, operands["targets"])
    phi, model, loss = map_rows(block.X, operands["feature_map"]), operands["model"], operands["loss"]
    widths, K = ((0.0, 0.03, 0.1, 0.3, 1.0) if loss == "hinge" else (0.0,)), len(model.coef)
    sums: Sums = {name: np.zeros((len(widths), 2, K)) for name in ("mass", "linear", "squares")}
    sums["dual_sums"], total = np.zeros((len(widths), 2, K, phi.shape[1] + 1)), 0.0
    for i, s in enumerate(weight):
        for k in range(K):
            y, f = values[i, k], math.fsum(model.coef[k] * phi[i]) + model.intercept[k]
            total += s * losses.value(y, f, loss)
            for w, width in enumerate(widths):
                a = -losses.slope(y, f, loss) if width == 0.0 else y * min(1.0, max(0.0, (1.0 - y * f) / width))
                side = int(a < 0.0)
                sums["mass"][w, side, k] += s * abs(a)
                sums["linear"][w, side, k] += s * a * y
                sums["squares"][w, side, k] += s * a**2
                sums["dual_sums"][w, side, k] += s * a * np.append(phi[i], 1.0)
    return {**sums, "loss": np.array([total]), "weight": np.array([math.fsum(weight)])}


def pricing_block(block: Block, operands: Operands) -> Sums:
    """Losses and |dual weights| by side, and every candidate's features times two columns of weights an output.

    For hinges these are the dual weights of the rows with target -1, and of those with 1; for half the squared error
    the residuals, and ones.
    """
    values, weight = model_targets(block, operands["targets"])
    phi, smoothing = map_rows(block.X, operands["feature_map"]), operands["smoothing"]
    n, K = values.shape
    columns, out = np.zeros((n, K, 2)), {"loss": np.zeros((2, K)), "mass": np.zeros((2, K))}
    for i in range(n):
        row = np.append(phi[i], 1.0)
        for k, model in enumerate(operands["models"]):
            y, f = values[i, k], math.fsum(row * model)
            if operands["loss"] == "squared_error":
                side = 0
                columns[i, k] = weight[i] * (y - f), weight[i]
                out["mass"][:, k] += columns[i, k]
            else:
                side, prior = int(y > 0.0), smoothing.reach - y * math.fsum(row * smoothing.past[k])
                smooth = tuned.smoothed_slope(1.0 - y * f, smoothing.ahead, prior)
                size = smooth if operands["loss"] == "hinge" else -y * losses.slope(y, f, "squared_hinge")
                columns[i, k, side] = weight[i] * y * size
                out["mass"][side, k] += weight[i] * size
            out["loss"][side, k] += weight[i] * losses.value(y, f, operands["loss"])
    pools = {f"pool{k}": feature_sums(block.X, columns[:, k], operands["pool"]) for k in range(K)}
    return {**out, **pools, "weight": np.array([math.fsum(weight)])}


def held_out_block(block: Block, operands: Operands) -> Sums:
    """sum_i s_i times the mean over outputs of a candidate's loss at row i, over the rows that judge it."""
    targets, models, fold = operands["targets"], operands["models"], operands["fold"]
    phi, folds, weights = map_rows(block.X, operands["feature_map"]), operands["folds"](block.row_id), weights_of(block)
    assert block.y is not None
    loss, total = np.zeros((models.shape[0], models.shape[2])), np.zeros(models.shape[2])
    multipliers = operands.get("multipliers", [])
    calibrated = {name: np.zeros((*loss.shape, 3, len(multipliers))) for name in ("label", "uniform") if multipliers}
    right, rows = np.zeros_like(loss), np.zeros_like(total)
    for i in range(block.n_rows):
        s = weights[i] * (1.0 if targets.class_weight is None else targets.class_weight[block.y[i]])
        for c in range(len(fold)):
            if folds[i] < 0 or folds[i] != fold[c]:
                continue
            total[c] += s
            rows[c] += weights[i]
            for v in range(len(models)):
                each, scores = [], []
                for k, output in enumerate(targets.models):
                    f = math.fsum(models[v, k, c, :-1] * phi[i]) + models[v, k, c, -1]
                    if targets.n_classes is None:
                        each.append(((block.y[i, output] - targets.center[output]) / targets.scale[output] - f) ** 2)
                    else:
                        each.append(losses.value(1.0 if block.y[i] == output else -1.0, f, "squared_hinge"))
                    scores.append(f)
                loss[v, c] += s * math.fsum(each) / len(each)
                given = int(scores[0] > 0.0) if len(scores) == 1 else targets.models[int(np.argmax(scores))]
                right[v, c] += weights[i] * (targets.n_classes is not None and given == block.y[i])
                for t, a in enumerate(multipliers):
                    for name, sums in zip(("label", "uniform"), calibration(scores, block.y[i], a), strict=True):
                        calibrated[name][v, c, :, t] += s * sums
    of_classes = {} if targets.n_classes is None else {"right": right, "rows": rows}
    return {"loss": loss, "weight": total, **of_classes, **calibrated}


def calibration(scores: list[float], code: int, a: float) -> tuple[np.ndarray, np.ndarray]:
    """The log loss of softmax(a scores), its slope and its curvature in log a: of a label, and their mean over labels.

    With z = a f and p = softmax(z) the loss of label k is log sum_j exp(z_j) - z_k, its slope sum_j p_j z_j - z_k, and
    its curvature the slope plus the variance of z under p. One score is that of the second of two classes.
    """
    z = [a * score for score in ([0.0, *scores] if len(scores) == 1 else scores)]
    top = max(z)
    norm = math.fsum(math.exp(one - top) for one in z)
    p = [math.exp(one - top) / norm for one in z]
    mean = math.fsum(share * one for share, one in zip(p, z, strict=True))
    variance = math.fsum(share * (one - mean) ** 2 for share, one in zip(p, z, strict=True))
    each = np.array([[top + math.log(norm) - one, mean - one, mean - one + variance] for one in z])
    return each[code], each.mean(axis=0)


def drawn_rows(block: Block, operands: Operands, number: int, size: int, seeds: list[int]) -> list[int]:
    """The rows of minibatch `number` of `size` rows: those not held out, in the order that the seeds draw."""
    held = operands["held_out"].mask(block.row_id)
    kept = [i for i in range(block.n_rows) if not held[i]]
    order = np.random.default_rng(seeds).permutation(kept)
    return [int(order[at]) for at in range(len(order)) if at // size == number]


def shuffled_minibatch(block: Block, operands: Operands, number: int, size: int) -> Sums | None:
    """phi(x_i) - c, the labels or standardised targets, and the weights of the drawn rows."""
    drawn = drawn_rows(block, operands, number, size, [operands["seed"], block.index])
    return centred_rows(block, operands, drawn)


def stored_minibatch(block: Block, operands: Operands, number: int, size: int) -> Sums | None:
    """The same of the rows that are not held out, in the order of their storage."""
    held = operands["held_out"].mask(block.row_id)
    kept = [i for i in range(block.n_rows) if not held[i]]
    return centred_rows(block, operands, [i for at, i in enumerate(kept) if at // size == number])


def centred_rows(block: Block, operands: Operands, drawn: list[int]) -> Sums | None:
    targets = operands["targets"]
    if not drawn:
        return None
    phi, weights = map_rows(block.X, operands["feature_map"]), row_values(block, targets)[1]
    assert block.y is not None
    y = [
        (block.y[i] - targets.center) / targets.scale if targets.classes is None else targets.classes[block.y[i]]
        for i in drawn
    ]
    return {
        "phi": np.array([[phi[i][j] - operands["center"][j] for j in range(len(phi[i]))] for i in drawn]),
        "y": np.array(y),
        "weight": np.array([weights[i] for i in drawn]),
    }


def refinement_minibatch(block: Block, operands: Operands, number: int, size: int) -> Sums | None:
    """Scaled rows in turns, x_i / (2 pi), the targets of all models and the weights of the drawn rows."""
    drawn = drawn_rows(block, operands, number, size, [operands["seed"], operands["epoch"], block.index])
    if not drawn:
        return None
    rows, (values, weights) = (
        scale_rows(block.X, operands["feature_map"].scaler),
        row_values(block, operands["targets"]),
    )
    return {
        "X": np.array([[x / (2.0 * math.pi) for x in rows[i]] for i in drawn]),
        "targets": np.array([values[i] for i in drawn]),
        "weight": np.array([weights[i] for i in drawn]),
    }


def factor_sums(block: Block, operands: Operands) -> Sums:
    """sum_i s_i factor_u(x_i) of single steps and hinges, and sum_i s_i."""
    weights, values = weights_of(block), atoms(block.X, operands["factors"])
    sums = [math.fsum(s * row[u] for s, row in zip(weights, values, strict=True)) for u in range(values.shape[1])]
    return {"sums": np.array(sums), "weight": np.array(math.fsum(weights))}


def category_sums(block: Block, operands: Operands) -> Sums:
    """sum_i w_i x_ij^p y_it^q over the rows of each fold that hold each code of one column, or of a pair of columns."""
    folds, K = operands["folds"], operands["n_classes"]
    fold, weights, rows = folds(block.held_with), weights_of(block), rows_of(block.X)
    assert block.y is not None
    sums: Sums = {}
    for each in operands["sums"]:
        sums[each.name] = np.zeros((folds.count, each.last - each.first))
        for i in range(block.n_rows):
            code = 0
            if each.key is not None:
                codes = []
                for part in each.key.parts:
                    values = rows[i][part.start : part.start + (1 if part.is_code else part.n_values)]
                    codes.append(int(values[0]) if part.is_code else int(np.argmax([0.0, *(values > 0)])))
                code = 1 + sum(
                    (one - 1) * math.prod(part.n_values for part in each.key.parts[place + 1 :])
                    for place, one in enumerate(codes)
                )
                code = code if all(codes) else 0
            if each.first <= code < each.last:
                t, q = each.target, each.target_power
                target = 1.0 if not q else np.atleast_1d(block.y[i])[t] if K is None else float(block.y[i] == t + 1)
                number = 1.0 if not each.power else rows[i][each.number] - each.shift
                sums[each.name][fold[i], code - each.first] += weights[i] * target**q * number**each.power
    return sums


def text_sums(block: Block, operands: Operands) -> Sums:
    """sum_i w_i z_i z_i' and sum_i w_i z_i t_i' over the rows of each fold, z = (1, the directions of a text)."""
    folds, K = operands["folds"], operands["n_classes"]
    fold, weights, rows = folds(block.held_with), weights_of(block), rows_of(block.X)
    assert block.y is not None
    T = 1 if K is None and np.ndim(block.y) == 1 else np.shape(block.y)[1] if K is None else K - 1
    sums: Sums = {"weight": np.zeros(folds.count)}
    sums |= {name: np.zeros((T, folds.count)) for name in ("targets", "squares")}
    for k, (_, size) in enumerate(operands["places"]):
        sums[f"gram {k}"] = np.zeros((folds.count, size + 1, size + 1))
        sums[f"answers {k}"] = np.zeros((folds.count, size + 1, T))
    for i in range(block.n_rows):
        f, w = fold[i], weights[i]
        sums["weight"][f] += w
        targets = [np.atleast_1d(block.y[i])[t] if K is None else float(block.y[i] == t + 1) for t in range(T)]
        for t, target in enumerate(targets):
            sums["targets"][t, f] += w * target
            sums["squares"][t, f] += w * target**2
        for k, (start, size) in enumerate(operands["places"]):
            z = [1.0, *rows[i][start : start + size]]
            for a, one in enumerate(z):
                for b, other in enumerate(z):
                    sums[f"gram {k}"][f, a, b] += w * one * other
                for t, target in enumerate(targets):
                    sums[f"answers {k}"][f, a, t] += w * one * target
    return sums


def curvature_block(block: Block, operands: Operands) -> Sums:
    """The Hessian of each model at its point, over the loss's unit of curvature, times a vector.

    The Hessian of the softmax has a square of features for each pair of classes: p_k (1 - p_k) of a class and itself,
    -p_k p_l of two, times the products of all pairs of features.
    """
    options, searches = operands["options"], operands["searches"]
    values, weights = newton_targets(block, operands["targets"])
    phi = np.column_stack([map_rows(block.X, operands["feature_map"]), np.ones(block.n_rows)])
    product = np.zeros(searches.shape)
    for i in range(block.n_rows):
        scores = operands["point"] @ phi[i]
        if options.loss == "softmax":
            p = np.exp(scores) / np.exp(scores).sum()
            for k, other in itertools.product(range(len(p)), repeat=2):
                hessian = weights[i, 0] * (p[k] * (k == other) - p[k] * p[other]) * np.outer(phi[i], phi[i])
                product[k] += hessian @ searches[other]
            continue
        for k, search in enumerate(searches):
            curvature = losses.curvature(values[i, k], scores[k], options.loss, options.epsilon)
            unit = 2.0 if options.loss == "squared_hinge" else 1.0
            product[k] += weights[i, k] * curvature / unit * (phi[i] @ search) * phi[i]
    return {"product": product}

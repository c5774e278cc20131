"""What the functions of a block return, as loops over its rows, under the same names.

Each takes the block and the operands that the function itself takes. Where a method's sums have a
definition in a module of their own, that one is used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.protocols.block import Block
from tests.definitions import explain, leverage, losses
from tests.definitions.blocks import encode_targets, feature_squares, feature_sums, map_rows, scale_rows, scattered_sums
from tests.definitions.steps import refit_block, search_block

__all__ = ["refit_block", "search_block"]

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
    for fold in range(folds.count + 1):
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
    """sum_i s_i sum_k l(y_ik, f_k(x_i)) over the held-out rows, and sum_i s_i."""
    values, weights = row_values(block, operands["targets"])
    phi, held = map_rows(block.X, operands["feature_map"]), operands["held_out"].mask(block.row_id)
    loss = total = 0.0
    for i in range(block.n_rows):
        if not held[i]:
            continue
        total += weights[i]
        for k, w in enumerate(operands["coef"]):
            f = math.fsum(w * phi[i]) + operands["intercept"][k]
            loss += weights[i] * losses.value(float(values[i][k]), f, operands["loss"], operands["epsilon"])
    return {"loss": np.array([loss]), "weight": np.array([total])}


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

"""What a corrective round reads off rows, in loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.protocols.block import Block
from tests.definitions import losses
from tests.definitions.blocks import map_rows


def gram_weights(scores: np.ndarray, targets: np.ndarray, weight: np.ndarray, loss: str) -> np.ndarray:
    """Weights of rows times the curvature of the first model, which is 1 where the loss curves the most."""
    largest = {"squared_hinge": 2.0, "log_loss": 0.25, "squared_error": 1.0}[loss]
    rows = zip(scores, targets, weight, strict=True)
    return np.array([w * losses.curvature(float(y[0]), float(f[0]), loss) / largest for f, y, w in rows])


def corrective_sums(X: Any, targets: tuple[np.ndarray, ...], feature_map: Any, round_: Any) -> dict[str, Any]:
    """One row after the other; the change of the Gram matrix of the old columns is one matrix, "change"."""
    rows = np.column_stack([map_rows(X, feature_map), np.ones(X.shape[0])])
    width, (y, weight, held) = rows.shape[1], targets
    K, loss = y.shape[1], losses.name_of(round_.loss)
    sums: dict[str, Any] = {name: np.zeros(K) for name in ("loss", "dual", "curvature", "absolutes", "squares")}
    sums |= {"support": np.zeros(K), "gradient": np.zeros((K, width)), "held_out": np.zeros(2)}
    sums |= {"cross": np.zeros((width, len(round_.new))), "change": np.zeros((len(round_.old),) * 2)}
    for i, phi in enumerate(rows):
        sums["held_out"][1] += held[i]
        curved = np.zeros(K)
        for k in range(K):
            f, t = math.fsum(round_.coefficients[k] * phi), float(y[i, k])
            value, curved[k] = losses.value(t, f, loss), losses.curvature(t, f, loss)
            dual = -losses.slope(t, f, loss)
            sums["held_out"][0] += held[i] * value
            sums["loss"][k] += weight[i] * value
            # what Fenchel's inequality leaves of the loss, with equality at the slope
            sums["dual"][k] += weight[i] * (value + dual * f)
            sums["curvature"][k] += weight[i] * curved[k]
            sums["absolutes"][k] += weight[i] * abs(dual)
            # a row of weight w is w rows
            sums["squares"][k] += weight[i] * dual**2
            sums["support"][k] += weight[i] * (dual != 0.0)
            sums["gradient"][k] += weight[i] * dual * phi
        # only the squared hinge of one model follows curvature, in units of its largest
        now = curved[0] / 2.0 if round_.active else 1.0
        sums["cross"] += weight[i] * now * np.outer(phi, phi[round_.new])
        before = 0.0
        if round_.previous is not None:
            before = losses.curvature(float(y[i, 0]), math.fsum(round_.previous[0] * phi), loss) / 2.0
        sums["change"] += weight[i] * (now - before) * np.outer(phi[round_.old], phi[round_.old])
    return sums


def corrective_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of a block: signs of classes or standardised numbers, and which rows only judge, one after the other."""
    assert block.y is not None
    named, hold, round_ = operands["targets"].targets, operands["targets"].held, operands["round"]
    held = np.zeros(block.n_rows, bool) if hold is None else hold(block.row_id)
    y, weight = [], []
    for i, target in enumerate(block.y):
        factor = 1.0
        if named.n_classes is None:
            y.append([(t - m) / d for t, m, d in zip(np.atleast_1d(target), named.center, named.scale, strict=True)])
        else:
            y.append([1.0 if target == k else -1.0 for k in named.models])
            factor = 1.0 if named.class_weight is None else named.class_weight[target]
        weight.append(factor * (1.0 if block.weight is None else block.weight[i]))
    learned = np.where(held, 0.0, weight), np.where(held, weight, 0.0)
    sums = corrective_sums(block.X, (np.array(y), *learned), operands["feature_map"], round_)
    change = sums.pop("change")
    return {**sums, **{f"change_{j}": change[a:b, a:] for j, (a, b) in enumerate(round_.panels)}}

"""What a round reads off rows, in loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dkl.protocols.block import Block
from tests.definitions import losses
from tests.definitions.steps import atoms, code


def round_sums(X: Any, targets: tuple[np.ndarray, ...], feature_map: Any, task: Any) -> dict[str, Any]:
    """One row after the other; the change of the Gram matrix of the old columns is cut into panels at the end."""
    raw = X.toarray() if hasattr(X, "toarray") else np.asarray(X)
    columns, (y, weight, held) = atoms(X, feature_map), targets
    if task.has_intercept:
        columns = np.column_stack([columns, np.ones(len(columns))])
    (n_trials, K, m), loss = task.trials.shape, losses.name_of(task.loss)
    at, new = task.trials[-1] if task.at is None else task.at, np.arange(m)[task.new]
    sums = {name: np.zeros(shape) for name, shape in task.shapes.items()}
    change = np.zeros((0, 0)) if task.change is None else np.zeros((len(np.arange(m)[task.change.old]),) * 2)

    def share(i: int, model: np.ndarray) -> float:
        """The share with which a row counts in products: its largest curvature, in the unit of the task."""
        if task.curvature_unit is None:
            return 1.0
        curved = [losses.curvature(float(y[i, k]), math.fsum(model[k] * columns[i]), loss) for k in range(K)]
        return max(curved) / task.curvature_unit

    for i, phi in enumerate(columns):
        for number, trial in enumerate(task.trials):
            for k in range(K):
                sums["held_out"][number] += held[i] * losses.value(float(y[i, k]), math.fsum(trial[k] * phi), loss)
        if n_trials:
            sums["held_weight"] += held[i]
        now = share(i, at if task.curved is None else task.curved)
        duals = np.zeros(K)
        for k in range(K):
            f, t = math.fsum(at[k] * phi), float(y[i, k])
            duals[k] = -losses.slope(t, f, loss)
            if task.has_dual:
                value = losses.value(t, f, loss)
                sums["loss"][k] += weight[i] * value
                # what Fenchel's inequality leaves of the loss, with equality at the slope
                sums["dual"][k] += weight[i] * (value + duals[k] * f)
                sums["curvature"][k] += weight[i] * losses.curvature(t, f, loss)
                sums["absolutes"][k] += weight[i] * abs(duals[k])
                # a row of weight w is w rows
                sums["squares"][k] += weight[i] * duals[k] ** 2
                sums["support"][k] += weight[i] * (duals[k] != 0.0)
        if "gradient" in sums:
            sums["gradient"] += weight[i] * np.outer(duals, phi)
            sums["cross"] += weight[i] * now * np.outer(phi, phi[new])
        if task.change is not None:
            before = 0.0 if task.change.previous is None else share(i, task.change.previous)
            change += weight[i] * (now - before) * np.outer(phi[task.change.old], phi[task.change.old])
        if task.histograms is not None and weight[i] > 0.0:
            bins = task.histograms.bins
            for p, parent in enumerate(task.histograms.parents):
                for j in range(len(bins.edges) if phi[parent] else 0):
                    b = code(float(raw[i, j]), bins.edges[j], bins.n_edges[j])
                    sums["histograms"][p, j, b] += weight[i] * np.array([1.0, now, *duals])
    for j, (start, stop) in enumerate(() if task.change is None else task.change.panels):
        sums[f"change_{j}"] = change[start:stop, start:]
    return sums


def round_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The sums of a block: signs of classes or standardised numbers, and which rows only judge, one after the other."""
    assert block.y is not None
    named, hold = operands["targets"].targets, operands["targets"].held
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
    return round_sums(block.X, (np.array(y), *learned), operands["feature_map"], operands["task"])

"""Every function of a block: where it lies, that it has a definition, and that the two agree on random rows."""

from __future__ import annotations

import ast
import importlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkl.encodings.keys import CategoryKey, CategoryPart
from dkl.encodings.sums import CategorySum
from dkl.encodings.target_means import CategoryFolds
from dkl.features.families import Gaussian, Matern
from dkl.features.feature_map import FeatureMap, combined_map
from dkl.features.projections import DenseProjection
from dkl.features.step_projection import StepProjection
from dkl.kernels.explanations import ColumnWaves
from dkl.kernels.normal_equations import NewtonOptions, NewtonTargets, TrialSteps, curvature_block, newton_block
from dkl.kernels.nufft import ACCURACY, FrequencyGrid, why_no_nufft
from dkl.linear.answers import Scorer
from dkl.linear.judge import Folds
from dkl.linear.minibatches import HeldOut, RowTargets
from dkl.linear.refinement_sums import refinement_minibatch
from dkl.linear.sums import shuffled_minibatch, stored_minibatch
from dkl.methods.density.descent import TunedModel
from dkl.methods.density.sums import MarginOptions, Smoothing
from dkl.methods.game.sums import DualStep, Feasible, GameTargets, Smoothed, Trials
from dkl.methods.margin.driver import column_numbers
from dkl.methods.metric.sums import MetricModel
from dkl.methods.peaks.driver import PeakTargets
from dkl.methods.peaks.grid_driver import GridProblem
from dkl.methods.potential_sums import PotentialProblem
from dkl.methods.rounds.loop import GramChange, HeldTargets, Histograms, RoundTask, round_block
from dkl.methods.steps.binning import ColumnBins, column_bins
from dkl.protocols.block import Block
from dkl.solvers.losses import loss_of
from tests.definitions import block_sums, game, metric
from tests.definitions import rounds as rounds_definitions
from tests.kernels.cases import FAMILIES, holey_rows, scaler, weighted_map

ROOT = Path(__file__).parents[2]
N, D_IN = 23, 4

# What passes run on a block that is no mathematics of a method.
NO_MATHEMATICS = {
    ("dkl.passes.kept_sums", "_sums_of_block"): "calls another record's function, or hands out sums that were kept",
    ("dkl.linear.answers", "score_block"): "scores the rows of a block, by the model's own scorer",
    ("dkl.bench.passes", "_count"): "counts rows, to time an empty pass",
    ("dkl.methods.checkpoints", "_no_sums"): "reads rows, whose chunks are compared as they are read",
    ("dkl.uncertainty.interval_scores", "conformal_scores"): "scores the answers to a block, by a tested score",
    ("dkl.linear.sums", "calibration_rows"): "maps the rows that `held_out_loss`, compared below, sums over",
}
# Compared with `tests/definitions/blocks.py` in `tests/kernels/test_kmeans.py`.
COMPARED_ELSEWHERE = {("dkl.methods.landmarks.kmeans_sums", "cluster_sums")}
# Those that make what a step sees of a block, in parts by number: compared below, by parts of a few rows.
MINIBATCHES = {
    ("dkl.linear.sums", "shuffled_minibatch"),
    ("dkl.linear.sums", "stored_minibatch"),
    ("dkl.linear.refinement_sums", "refinement_minibatch"),
}
# Where the definitions of a module's functions lie, for modules that have a place of their own: names come twice.
DEFINITIONS: dict[str, Any] = {
    "dkl.methods.game.sums": game,
    "dkl.methods.metric.sums": metric,
    "dkl.methods.rounds.loop": rounds_definitions,
}


def definition_of(module: str, name: str) -> Any:
    """The function of the same name that is a loop over rows; None where there is none."""
    return getattr(DEFINITIONS.get(module, block_sums), name, None)


@cache
def functions_of_records() -> set[tuple[str, str]]:
    """Module and name of the functions that the module's own records name: the second argument of `BlockSum`."""
    found = set()
    for path in sorted((ROOT / "dkl").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "BlockSum" and len(node.args) > 1:
                found.add((module, ast.unparse(node.args[1])))
    return found


@cache
def block_functions() -> list[tuple[str, str]]:
    """Module and name of all functions of (block, operands) or (block, operands, number), from the syntax trees."""
    found = []
    for path in sorted((ROOT / "dkl").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                names = [argument.arg for argument in node.args.args]
                if names in (["block", "operands"], ["block", "operands", "number"]):
                    found.append((module, node.name))
    return found


def test_block_functions_lie_in_kernels_in_modules_of_sums_or_beside_their_record() -> None:
    found = block_functions()
    assert set(NO_MATHEMATICS) <= set(found)
    wrong = [
        (module, name)
        for module, name in set(found) - set(NO_MATHEMATICS) - functions_of_records()
        if not module.startswith("dkl.kernels.") and module.rpartition(".")[2].rpartition("_")[2] != "sums"
    ]
    assert wrong == []


def test_every_block_function_has_its_definition_or_is_listed() -> None:
    found = set(block_functions()) - set(NO_MATHEMATICS)
    assert found == set(CASES) | MINIBATCHES | COMPARED_ELSEWHERE
    assert [place for place in (*CASES, *MINIBATCHES) if definition_of(*place) is None] == []


def some_block(kind: str, n_columns: int = D_IN) -> Block:
    """Rows with holes, and weights; codes of two or three classes, or two targets; numbers beside the rows."""
    rng = np.random.default_rng(3)
    y = rng.standard_normal((N, 2)) + 5.0 if kind == "targets" else rng.integers(0, int(kind), N)
    weight = rng.uniform(0.5, 2.0, N)
    columns = {name: rng.uniform(-0.5, 1.5, (N, n_models(kind))) for name in ("dual", "mean", "score", "hat")}
    return Block(0, holey_rows(N, n_columns), y, weight, np.arange(N), columns)


def n_models(kind: str) -> int:
    return {"2": 1, "3": 3, "targets": 2}[kind]


def peaks(kind: str) -> PeakTargets:
    if kind == "targets":
        return PeakTargets(None, None, np.array([4.9, 5.2]), np.array([2.0, 0.5]))
    K = int(kind)
    return PeakTargets(K, np.linspace(0.5, 1.5, K), np.full(K, 1.0 / K))


def potentials(kind: str) -> PotentialProblem:
    pool = weighted_map(FAMILIES["phase"], 5, D_IN, "float64", "standard")
    if kind == "targets":
        return PotentialProblem(pool, None, 2, None, "float64", diagonal=False, pivot=np.array([5.0, 4.0]))
    return PotentialProblem(pool, int(kind), 1, np.linspace(0.5, 1.5, int(kind)), "float64", diagonal=False)


def waves(columns: list[int], kind: str | None) -> ColumnWaves:
    W = np.random.default_rng(len(columns)).standard_normal((5, len(columns)))
    own = scaler(kind, len(columns))
    return ColumnWaves(FeatureMap("cos-sin", DenseProjection(W), np.ones(5), scaler=own), np.array(columns))


def judged(kind: str) -> dict[str, Any]:
    """A model for each output of a block, its targets, and a share of rows held out."""
    K = n_models(kind)
    pool, rng = weighted_map(FAMILIES["gaussian"], 5, D_IN, "float64", "standard"), np.random.default_rng(4)
    if kind == "targets":
        targets = RowTargets(weight_scale=0.7, center=np.array([5.0, 4.0]), scale=np.array([1.0, 2.0]))
    else:
        targets = RowTargets(np.arange(int(kind)), np.linspace(0.5, 1.5, int(kind)), 0.7)
    return {
        "feature_map": pool,
        "coef": rng.standard_normal((K, pool.n_features)),
        "intercept": rng.standard_normal(K),
        "dtype": "float64",
        "held_out": HeldOut(0.4, 1),
        "targets": targets,
        "loss": "squared_error" if kind == "targets" else "squared_hinge",
        "epsilon": 0.1,
        "calibrated": kind != "targets",
    }


def newton_step(kind: str) -> dict[str, Any]:
    """Two models (of the three classes, the middle one is left out) at three steps, each blind to its own fold."""
    K = {"2": 1, "3": 2, "targets": 2}[kind]
    rng, pool = np.random.default_rng(6), candidates()
    models = {"2": np.array([1]), "3": np.array([0, 2]), "targets": np.array([0, 1])}[kind]
    unseen: dict[str, Any] = {"folds": lambda row_id: row_id % 5 - 2, "fold": np.array([0, 1])[:K]}
    targets = {
        "2": NewtonTargets(models, 2, np.array([0.5, 1.5]), kept=lambda row_id: row_id % 4 > 0),
        "3": NewtonTargets(models, 3, np.linspace(0.5, 1.5, 3), **unseen),
        "targets": NewtonTargets(models, None, center=np.array([5.0, 4.0]), scale=np.array([1.0, 2.0]), **unseen),
    }[kind]
    coefficients, directions = 0.3 * rng.standard_normal((2, K, pool.n_features + 1))
    return {
        "feature_map": pool,
        "trial": TrialSteps(coefficients, directions, rng.uniform(0.1, 1.0, (K, 3))),
        "options": NewtonOptions(
            "squared_error" if kind == "targets" else "squared_hinge", (3, 11), tuple(range(K)), dtype="float64"
        ),
        "targets": targets,
    }


def softmax_step(kind: str) -> dict[str, Any]:
    """A model a class at three steps, which all models take alike; some rows are held out."""
    K, rng, pool = int(kind), np.random.default_rng(6), candidates()
    coefficients, directions = 0.3 * rng.standard_normal((2, K, pool.n_features + 1))
    return {
        "feature_map": pool,
        "trial": TrialSteps(coefficients, directions, rng.uniform(0.1, 1.0, (1, 3))),
        "options": NewtonOptions("softmax", (3, 11), dtype="float64"),
        "targets": NewtonTargets(np.arange(K), K, np.linspace(0.5, 1.5, K), kept=lambda row_id: row_id % 4 > 0),
    }


def hessian_product(kind: str) -> dict[str, Any]:
    """The Hessians of the same models, each times a vector."""
    step = newton_step(kind)
    return {
        "feature_map": step["feature_map"],
        "point": step["trial"].coefficients,
        "searches": step["trial"].directions,
        "targets": step["targets"],
        "options": step["options"],
    }


# the losses of tuned machines by kind of rows: labels have hinges, numbers the squared error
TUNED_LOSSES = {"2": "hinge", "3": "squared_hinge", "targets": "squared_error"}


def tuned(kind: str) -> dict[str, Any]:
    """Features and targets of tuned machines on a block, and models of the size that they need."""
    K = {"2": 1, "3": 3, "targets": 2}[kind]
    if kind == "targets":
        targets = NewtonTargets(np.arange(2), None, center=np.array([5.0, 4.0]), scale=np.array([1.0, 2.0]))
    else:
        targets = NewtonTargets(np.array([1]) if K == 1 else np.arange(K), int(kind), np.linspace(0.5, 1.5, int(kind)))
    models = np.random.default_rng(5).standard_normal((K, 11))
    return {"feature_map": candidates(), "targets": targets, "models": models, "dtype": "float64"}


def tuned_squares(kind: str, columns: tuple[int, int], folds: Any) -> dict[str, Any]:
    operands = tuned(kind)
    del operands["models"]
    n_folds = 1 if folds is None else 2
    return {**operands, "folds": folds, "n_folds": n_folds, "columns": columns, "first": folds is not None}


def tuned_margins(kind: str) -> dict[str, Any]:
    """Steps of hinges: no curvature is so small at these widths that its row is left out of the Hessian."""
    operands = tuned(kind)
    models, rng = operands.pop("models"), np.random.default_rng(6)
    loss: Any = TUNED_LOSSES[kind]
    return {
        **operands,
        "trial": TrialSteps(models, rng.standard_normal(models.shape), rng.uniform(0.1, 1.0, (len(models), 3))),
        "smoothing": Smoothing(2.0, 1.5, 0.2 * rng.standard_normal(models.shape), 0.3, follows=True),
        "options": MarginOptions(loss, (2, 11), tuple(range(len(models)))[::-1], dtype="float64"),
        "sample": lambda row_id: row_id % 3 > 0,
    }


def tuned_judged(kind: str) -> dict[str, Any]:
    operands = tuned(kind)
    models = operands.pop("models")
    return {**operands, "model": TunedModel(models[:, :-1], models[:, -1], np.ones((1, 5))), "loss": TUNED_LOSSES[kind]}


def tuned_prices(kind: str) -> dict[str, Any]:
    operands = tuned(kind)
    smoothing = Smoothing(1.0, 0.7, 0.3 * operands["models"][:, ::-1], 0.2)
    pool = weighted_map(FAMILIES["phase"], 7, D_IN, "float64", "standard")
    return {**operands, "smoothing": smoothing, "loss": TUNED_LOSSES[kind], "pool": pool}


def candidates() -> FeatureMap:
    return weighted_map(FAMILIES["gaussian"], 5, D_IN, "float64", "standard")


def slopes() -> Scorer:
    coef = np.random.default_rng(2).standard_normal((2, 10))
    return Scorer(candidates(), coef, np.zeros(2), "float64")


def played(kind: str) -> dict[str, Any]:
    """A game at some round: its rows, a tenth of them held out, its machines, its multipliers and where they may be."""
    K, rng = n_models(kind), np.random.default_rng(5)
    targets = GameTargets(int(kind), np.linspace(0.5, 1.5, int(kind)), HeldOut(0.1, 1).mask)
    pool = candidates()
    return {
        "targets": targets,
        "upper": 1.0,
        "start": 0.7,
        "edges": np.sort(rng.uniform(-2.0, 2.0, (K, 7)), axis=1),
        # of two classes the exact projection, of three the alternating one, each with so many multipliers
        "feasible": Feasible(1.0, rng.uniform(-0.3, 0.3, (K, K)), exact=K == 1),
        "candidates": pool,
        "feature_map": pool,
        "coefficients": rng.standard_normal((pool.n_features, K)),
        "smoothed": Smoothed(0.3, 0.6),
        "step": DualStep(pool, rng.standard_normal((pool.n_features, K)), 0.4, 0.25, 0.5, "float64"),
        "trials": Trials(np.array([1.0, 0.5]), rng.standard_normal((K, 3))),
        "share": 0.25,
        "target": "mean",
        "loss": "squared_hinge" if K == 1 else "hinge",
        "checks_mean": K > 1,
        "dtype": "float64",
    }


def judged_candidates(kind: str) -> dict[str, Any]:
    """Two versions of models for two folds and two penalties, on the rows of two folds."""
    pool, K = candidates(), {"2": 1, "3": 3, "targets": 2}[kind]
    if kind == "targets":
        targets = NewtonTargets(np.arange(2), None, center=np.array([5.0, 4.0]), scale=np.array([1.0, 2.0]))
    else:
        outputs = np.array([1]) if kind == "2" else np.arange(3)
        targets = NewtonTargets(outputs, int(kind), np.linspace(0.5, 1.5, int(kind)))
    return {
        "feature_map": pool,
        "models": np.random.default_rng(6).standard_normal((2, K, 4, pool.n_features + 1)),
        "targets": targets,
        "folds": Folds(HeldOut(0.3, 1), 2),
        "fold": np.array([0, 1, 0, 1]),
        "loss": {"name": "squared_error" if kind == "targets" else "squared_hinge"},
        "dtype": "float64",
        "multipliers": [] if kind == "targets" else [0.5, 3.0],
    }


def corrective_round(kind: str) -> dict[str, Any]:
    """A round with three points and two candidates, each a pair; of two classes it follows the rows with curvature."""
    K, rng = n_models(kind), np.random.default_rng(6)
    old, new = column_numbers(2, 3, 2)
    models = np.zeros((K + 1, len(old) + len(new)))
    models[:, old] = rng.standard_normal((K + 1, len(old)))
    loss = loss_of({"2": "squared_hinge", "3": "log_loss", "targets": "squared_error"}[kind])
    task = RoundTask(
        loss,
        models[None, :K],
        new,
        "float64",
        curvature_unit=loss.largest_curvature if kind == "2" else None,
        has_intercept=True,
        has_dual=True,
        change=GramChange(old, models[K:] if kind == "2" else None, ((0, 4), (4, len(old)))),
    )
    if kind == "targets":
        center, scale = np.array([5.0, 4.0]), np.array([1.0, 2.0])
        targets = NewtonTargets(np.arange(2), None, center=center, scale=scale)
    else:
        models_of = np.array([1]) if kind == "2" else np.arange(K)
        targets = NewtonTargets(models_of, int(kind), np.linspace(0.5, 1.5, int(kind)))
    held = HeldTargets(targets, HeldOut(0.4, 1).mask)
    return {"feature_map": candidates(), "task": task, "targets": held}


def grid_of_cells(kind: str) -> dict[str, Any]:
    """The first grid over two columns; of three classes some cells instead."""
    origin = weighted_map(FAMILIES["gaussian"], 1, 2, "float64", "standard")
    grid = FrequencyGrid(np.array([0.3, 0.1]), (4, 3))
    problem = GridProblem(origin, peaks(kind), grid, np.array([0.2, -0.1]), 1, 2, N, N)
    cells = np.random.default_rng(7).uniform(-2.0, 2.0, (9, 2)) if kind == "3" else None
    return {"problem": problem, "cells": cells}


def steps(kind: str, *, search: bool) -> dict[str, Any]:
    """Atoms of no, one and two factors, and what a refit or a search asks of them."""
    K = {"2": 1, "3": 3, "targets": 2}[kind]
    if kind == "targets":
        targets = NewtonTargets(np.arange(2), None, None, np.array([5.0, 4.0]), np.array([1.0, 2.0]))
    else:
        targets = NewtonTargets(np.array([1]) if K == 1 else np.arange(K), int(kind), np.linspace(0.5, 1.5, int(kind)))
    bins = column_bins(holey_rows(N, D_IN), np.ones(N), 5)
    feature_map, candidates = some_steps(bins), None
    if kind == "3":
        # the working model has waves, too, and candidates of two kinds
        waves = weighted_map(FAMILIES["gaussian"], 2, D_IN, "float64", "standard")
        feature_map = combined_map([feature_map, waves])
        candidates = combined_map([waves.take(np.array([1])), some_steps(bins)])
    loss = loss_of("squared_error" if kind == "targets" else "log_loss")
    rng, m = np.random.default_rng(5), feature_map.n_features
    if search:
        whole = feature_map if candidates is None else combined_map([feature_map, candidates])
        models = np.zeros((3, K, whole.n_features))
        models[:, :, :m] = rng.standard_normal((3, K, m))
        task = RoundTask(
            loss,
            models[:2],
            slice(m, whole.n_features),
            "float64",
            curved=None if loss.is_square else models[2],
            histograms=Histograms(np.array([0, 1]), bins),
        )
        feature_map = whole
    else:
        # the whole matrix, or some of its columns
        new = slice(m, m) if K == 1 else np.array([1, 4])
        whole = GramChange(slice(0, m), None, ((0, m),), 50) if K == 1 else None
        start = rng.standard_normal((K, m)) * (not loss.is_square)
        task = RoundTask(loss, np.zeros((0, K, m)), new, "float64", at=start, change=whole)
    return {"feature_map": feature_map, "targets": HeldTargets(targets, HeldOut(0.4, 1).mask), "task": task}


def metric_model(kind: str) -> dict[str, Any]:
    """A kernel model of five landmarks in a metric; of numbers the metric is a matrix."""
    K, rng = n_models(kind), np.random.default_rng(9)
    if kind == "targets":
        targets = NewtonTargets(np.arange(2), None, None, np.array([5.0, 4.0]), np.array([1.0, 2.0]))
    else:
        targets = NewtonTargets(np.array([1]) if K == 1 else np.arange(K), int(kind), np.linspace(0.5, 1.5, int(kind)))
    root = rng.uniform(0.5, 1.5, D_IN) if kind != "targets" else rng.standard_normal((D_IN, D_IN))
    kernel, landmarks = Matern(0.5 if K == 1 else 1.5, 2.0), rng.standard_normal((5, D_IN))
    model = MetricModel(kernel, scaler("standard", D_IN), landmarks, root, rng.standard_normal((K, 5)))
    return {"targets": HeldTargets(targets, HeldOut(0.4, 1).mask), "model": model}


def some_steps(bins: ColumnBins) -> FeatureMap:
    columns = np.array([[-1, -1, -1], [0, -1, -1], [0, 1, -1], [2, -1, -1], [1, 3, 0]], np.int32)
    thresholds = np.where(columns >= 0, bins.edges[np.maximum(columns, 0), 1], 0.0)
    kinds = np.array([[0, 0, 0], [0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]], np.int8)
    return FeatureMap("steps", StepProjection(columns, thresholds, kinds, bins.high), np.ones(5))


# Operands for each function and kind of rows: "2" and "3" are numbers of classes.
CASES: dict[tuple[str, str], Any] = {
    ("dkl.kernels.explanations", "slope_sums"): lambda _: {"machine": slopes()},
    ("dkl.kernels.explanations", "sums_without"): lambda _: {
        "feature_map": candidates(),
        "groups": (np.array([2]), np.array([0, 3])),
        "dtype": "float64",
    },
    ("dkl.kernels.explanations", "wave_sums"): lambda _: {
        "parts": (waves([1], None), waves([0, 2], "standard")),
        "dtype": "float64",
    },
    ("dkl.kernels.moments", "block_moments"): lambda kind: {} if kind == "2" else {"scaled": np.arange(D_IN) != 1},
    ("dkl.kernels.normal_equations", "curvature_block"): hessian_product,
    ("dkl.kernels.normal_equations", "newton_block"): newton_step,
    ("dkl.linear.sums", "held_out_block"): judged_candidates,
    ("dkl.linear.sums", "held_out_loss"): judged,
    ("dkl.linear.sums", "target_sums"): lambda kind: {
        "n_classes": None if kind == "targets" else int(kind),
        "class_weight": None if kind == "targets" else np.linspace(0.5, 1.5, int(kind)),
        "held_out": HeldOut(0.4, 1),
    },
    ("dkl.methods.density.sums", "pricing_block"): tuned_prices,
    ("dkl.methods.density.sums", "judging_sums"): tuned_judged,
    ("dkl.methods.density.sums", "margin_block"): tuned_margins,
    ("dkl.methods.density.sums", "squared_block"): lambda kind: (
        tuned_squares(kind, (0, 11), lambda row_id: row_id % 3 - (kind == "2"))
        if kind != "3"
        else tuned_squares(kind, (4, 9), None)
    ),
    ("dkl.methods.game.sums", "balance_block"): played,
    ("dkl.methods.game.sums", "gram_block"): played,
    ("dkl.methods.game.sums", "multiplier_block"): played,
    ("dkl.methods.game.sums", "score_block"): played,
    ("dkl.methods.game.sums", "start_block"): played,
    ("dkl.methods.game.sums", "step_block"): played,
    ("dkl.methods.game.sums", "sum_block"): played,
    ("dkl.methods.game.sums", "verify_block"): played,
    ("dkl.methods.leverage.sums", "cross_gram_block"): lambda _: {
        "first": candidates(),
        "second": Gaussian(1.0).draw(3, D_IN, 0, "float64"),
        "dtype": "float64",
    },
    ("dkl.methods.leverage.sums", "gram_block"): lambda _: {
        "feature_map": candidates(),
        "columns": (2, 11),
        "dtype": "float64",
    },
    ("dkl.methods.leverage.sums", "squares_block"): lambda _: {"feature_map": candidates(), "dtype": "float64"},
    ("dkl.methods.peaks.grid_driver", "cell_sums"): grid_of_cells,
    ("dkl.methods.peaks.driver", "peak_sums"): lambda kind: {
        "feature_map": candidates(),
        "targets": peaks(kind),
        "dtype": "float64",
    },
    ("dkl.encodings.sums", "category_sums"): lambda kind: {
        "sums": (
            CategorySum("all", None, 0, 1),
            CategorySum("squares", None, 0, 1, target=0, target_power=2),
            CategorySum("weight", CategoryKey((CategoryPart(1, 3, True),)), 0, 4),
            CategorySum("target", CategoryKey((CategoryPart(2, 3, True),)), 1, 3, target=0, target_power=1),
            CategorySum("number", CategoryKey((CategoryPart(2, 3, True),)), 0, 4, number=0, power=1, shift=0.5),
            CategorySum("pairs", CategoryKey((CategoryPart(1, 3, True), CategoryPart(2, 3, True))), 0, 10),
            CategorySum("one-hot", CategoryKey((CategoryPart(1, 3, True), CategoryPart(2, 2, False))), 2, 7),
            # of many values, of which the rows have few
            CategorySum("many", CategoryKey((CategoryPart(1, 3_000, True),)), 0, 3_001),
            CategorySum("many targets", CategoryKey((CategoryPart(1, 3_000, True),)), 0, 3_001, target_power=1),
        ),
        "folds": CategoryFolds(HeldOut(0.2, 3)),
        "n_classes": None if kind == "targets" else int(kind),
    },
    ("dkl.encodings.sums", "text_sums"): lambda kind: {
        "places": ((0, 2), (3, 1)),
        "folds": CategoryFolds(HeldOut(0.2, 3)),
        "n_classes": None if kind == "targets" else int(kind),
    },
    ("dkl.kernels.explanations", "factor_sums"): lambda _: {
        "factors": some_steps(column_bins(holey_rows(N, D_IN), np.ones(N), 5)).take(np.array([1, 3]))
    },
    ("dkl.methods.metric.sums", "system_block"): metric_model,
    ("dkl.methods.metric.sums", "slope_block"): metric_model,
    ("dkl.methods.rounds.loop", "round_block"): lambda kind: steps(kind, search=True),
    ("dkl.methods.potential_sums", "potential_sums"): lambda kind: {"problem": potentials(kind)},
    ("dkl.methods.potential_sums", "sums_by_fold"): lambda kind: {
        "problem": potentials(kind),
        "folds": Folds(HeldOut(1.0 / 3.0), 2),
    },
    ("dkl.uncertainty.drift_sums", "column_counts"): lambda _: {
        "edges": column_bins(holey_rows(N, D_IN), np.ones(N), 5).edges,
        "n_edges": column_bins(holey_rows(N, D_IN), np.ones(N), 5).n_edges,
    },
}


# What is for labels alone: a margin, and the game on its dual.
OF_LABELS = {("dkl.methods.density.sums", "margin_block")} | {
    case for case in CASES if case[0] == "dkl.methods.game.sums"
}
# Functions for rows of few columns; parts that are exact to less than rounding, relative to their size or absolutely.
FEW_COLUMNS = {"cell_sums": 2}
RELATIVE = {"slope_block": 1e-6, "slope_sums": 1e-7}
ABSOLUTE = {("slope_block", "products"): 1e-6, ("cell_sums", "features"): 2.0 * N * ACCURACY}
KINDS = [
    (*case, kind) for case in CASES for kind in ("2", "3", "targets") if kind != "targets" or case not in OF_LABELS
]


@pytest.mark.parametrize(("module", "name", "kind"), KINDS)
def test_block_functions_are_their_definitions(module: str, name: str, kind: str) -> None:
    if name == "cell_sums" and why_no_nufft() is not None:
        pytest.skip("finufft is an extra")
    block, operands = some_block(kind, FEW_COLUMNS.get(name, D_IN)), CASES[module, name](kind)
    if name == "category_sums":
        # columns of codes hold the places of values
        X = np.clip(np.abs(np.round(np.asarray(block.X))), 0.0, 3.0)
        # two columns for a one-hot pair: one of them is set, or none
        X[:, 3] = np.where(X[:, 2] > 0, 0.0, X[:, 3])
        block = replace(block, X=X)
    found = getattr(importlib.import_module(module), name)(block, operands)
    expected = definition_of(module, name)(block, operands)
    # moments are kept in more parts than their definition names
    assert set(found) == set(expected) or name == "target_sums"
    for part, value in expected.items():
        rtol, atol = RELATIVE.get(name, 1e-10), ABSOLUTE.get((name, part), 1e-10)
        np.testing.assert_allclose(found[part], value, rtol=rtol, atol=atol, err_msg=part)


@pytest.mark.parametrize("kind", ["2", "3", "targets"])
@pytest.mark.parametrize("of_one_family", [True, False])
def test_other_passes_of_rounds_are_their_definition(of_one_family: bool, kind: str) -> None:
    """A pass that judges and verifies beside an intercept, and one that only refits."""
    operands = corrective_round(kind) if of_one_family else steps(kind, search=False)
    found, expected = (
        function(some_block(kind), operands) for function in (round_block, rounds_definitions.round_block)
    )
    assert found.keys() == expected.keys()
    for part, value in expected.items():
        np.testing.assert_allclose(found[part], value, rtol=1e-10, atol=1e-10, err_msg=part)


@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("kind", ["2", "3"])
def test_steps_of_all_classes_together_are_their_definition(kind: str, moves: bool) -> None:
    """Steps along directions, and a point without a direction, whose scores are computed once."""
    block, operands = some_block(kind, D_IN), softmax_step(kind)
    if not moves:
        trial = operands["trial"]
        operands["trial"] = replace(trial, directions=np.zeros_like(trial.directions))
    found, expected = newton_block(block, operands), block_sums.softmax_block(block, operands)
    for part, value in expected.items():
        np.testing.assert_allclose(found[part], value, rtol=1e-10, atol=1e-10, err_msg=part)


@pytest.mark.parametrize(
    ("loss", "kind"), [("log_loss", "2"), ("log_loss", "3"), ("poisson", "targets"), ("huber", "targets")]
)
def test_products_with_the_hessians_of_other_losses_are_their_definition(loss: Any, kind: str) -> None:
    block, operands = some_block(kind, D_IN), hessian_product(kind)
    operands["options"] = replace(operands["options"], loss=loss, epsilon=0.4)
    expected = block_sums.curvature_block(block, operands)
    np.testing.assert_allclose(curvature_block(block, operands)["product"], expected["product"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["2", "3"])
def test_products_with_the_hessian_of_all_classes_are_its_definition_and_changes_of_the_gradient(kind: str) -> None:
    """By the definition, and by central differences of gradients along the vector."""
    block, step = some_block(kind, D_IN), softmax_step(kind)
    point, searches = step["trial"].coefficients, step["trial"].directions
    operands = {**step, "point": point, "searches": searches}
    found = curvature_block(block, operands)["product"]
    np.testing.assert_allclose(found, block_sums.curvature_block(block, operands)["product"], rtol=1e-10, atol=1e-10)

    def gradient(length: float) -> np.ndarray:
        moved = TrialSteps(point, searches, np.full((1, 1), length))
        return newton_block(block, {**step, "trial": moved})["gradient"]

    np.testing.assert_allclose(found, (gradient(1e-4) - gradient(-1e-4)) / 2e-4, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["2", "3", "targets"])
def test_minibatches_are_their_definitions(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Minibatches of seven rows: whole ones, what is left, and none after these."""
    monkeypatch.setattr("dkl.linear.refinement_sums._MINIBATCH_ROWS", 7)
    block, center = some_block(kind), np.random.default_rng(5).standard_normal(candidates().n_features)
    operands = {
        **judged(kind),
        "held_out": HeldOut(0.2, 1),
        "center": center,
        "minibatch_rows": 7,
        "seed": 3,
        "epoch": 2,
    }
    sizes = []
    for number in range(5):
        tile = shuffled_minibatch(block, operands, number)
        scaled = refinement_minibatch(block, operands, number)
        expected = block_sums.shuffled_minibatch(block, operands, number, 7)
        expected_scaled = block_sums.refinement_minibatch(block, operands, number, 7)
        if tile is None or scaled is None:
            assert (tile, scaled, expected, expected_scaled) == (None,) * 4
            sizes.append(0)
            continue
        assert expected is not None
        assert expected_scaled is not None
        for part, value in expected.items():
            np.testing.assert_allclose(getattr(tile, part), value, rtol=1e-10, atol=1e-12, err_msg=part)
        stored = stored_minibatch(block, operands, number)
        expected_stored = block_sums.stored_minibatch(block, operands, number, 7)
        assert stored is not None
        assert expected_stored is not None
        for part, value in expected_stored.items():
            np.testing.assert_allclose(getattr(stored, part), value, rtol=1e-10, atol=1e-12, err_msg=part)
        for part, value in expected_scaled.items():
            found = scaled.rows.X if part == "X" else getattr(scaled, part)
            np.testing.assert_allclose(found, value, rtol=1e-10, atol=1e-12, err_msg=part)
        sizes.append(len(tile.y))
    n_kept = int(np.sum(~operands["held_out"].mask(block.row_id)))
    assert sizes == [min(7, n_kept - start) for start in range(0, n_kept, 7)] + [0] * (5 - -(-n_kept // 7))

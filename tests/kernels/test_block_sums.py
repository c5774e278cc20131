"""Every function of a block: where it lies, that it has a definition, and that the two agree on random rows."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dkl.explain.sums import ColumnWaves
from dkl.features.families import Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.minibatches import HeldOut, RowTargets
from dkl.linear.penalty_choice import Folds
from dkl.linear.refinement_sums import refinement_minibatch
from dkl.linear.sums import shuffled_minibatch
from dkl.methods.peaks.sums import PeakTargets
from dkl.methods.potentials import PotentialProblem
from dkl.methods.prediction import Scorer
from dkl.model_selection.folds import RowFolds
from dkl.protocols.block import Block
from tests.definitions import block_sums as definitions
from tests.kernels.cases import FAMILIES, holey_rows, scaler, weighted_map

ROOT = Path(__file__).parents[2]
N, D_IN = 23, 4

# What passes run on a block that is no mathematics of a method.
NO_MATHEMATICS = {
    ("dkl.passes.kept_sums", "_sums_of_block"): "calls another record's function, or hands out sums that were kept",
    ("dkl.cli.predictions", "_predict_block"): "predicts the rows of a block, by the model's own prediction",
    ("dkl.bench.passes", "_count"): "counts rows, to time an empty pass",
}
# Compared with `tests/definitions/blocks.py` in `tests/kernels/test_kmeans.py`.
COMPARED_ELSEWHERE = {("dkl.methods.landmarks.kmeans_sums", "cluster_sums")}
# Those that make what a step sees of a block, in parts by number: compared below, by parts of a few rows.
MINIBATCHES = {("dkl.linear.sums", "shuffled_minibatch"), ("dkl.linear.refinement_sums", "refinement_minibatch")}
# Functions that have no definition under their own name yet: most only map a block and call sums that have one.
# This list may only become shorter.
WITHOUT_A_TWIN = {
    ("dkl.kernels.moments", "block_moments"),
    ("dkl.kernels.normal_equations", "newton_block"),
    ("dkl.methods.density.joint_sums", "pricing_block"),
    ("dkl.methods.density.sums", "judging_sums"),
    ("dkl.methods.density.sums", "margin_block"),
    ("dkl.methods.density.sums", "misfit_block"),
    ("dkl.methods.density.sums", "squared_block"),
    ("dkl.methods.game.sums", "balance_block"),
    ("dkl.methods.game.sums", "gram_block"),
    ("dkl.methods.game.sums", "multiplier_block"),
    ("dkl.methods.game.sums", "score_block"),
    ("dkl.methods.game.sums", "start_block"),
    ("dkl.methods.game.sums", "step_block"),
    ("dkl.methods.game.sums", "sum_block"),
    ("dkl.methods.game.sums", "verify_block"),
    ("dkl.methods.margin.sums", "corrective_block"),
    ("dkl.methods.peaks.sums", "cell_sums"),
}


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


def test_block_functions_lie_in_kernels_or_in_modules_of_sums() -> None:
    found = block_functions()
    assert set(NO_MATHEMATICS) <= set(found)
    wrong = [
        (module, name)
        for module, name in set(found) - set(NO_MATHEMATICS)
        if not module.startswith("dkl.kernels.") and module.rpartition(".")[2].rpartition("_")[2] != "sums"
    ]
    assert wrong == []


def test_every_block_function_has_its_definition_or_is_listed() -> None:
    found = set(block_functions()) - set(NO_MATHEMATICS)
    assert found == set(CASES) | MINIBATCHES | COMPARED_ELSEWHERE | WITHOUT_A_TWIN
    assert not (set(CASES) | MINIBATCHES) & WITHOUT_A_TWIN
    assert [name for _, name in (*CASES, *MINIBATCHES) if not hasattr(definitions, name)] == []


def some_block(kind: str) -> Block:
    """Rows with holes, and weights; codes of two or three classes, or two targets."""
    rng = np.random.default_rng(3)
    y = rng.standard_normal((N, 2)) + 5.0 if kind == "targets" else rng.integers(0, int(kind), N)
    return Block(0, holey_rows(N, D_IN), y, rng.uniform(0.5, 2.0, N), np.arange(N))


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
    K = {"2": 1, "3": 3, "targets": 2}[kind]
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
    }


def candidates() -> FeatureMap:
    return weighted_map(FAMILIES["gaussian"], 5, D_IN, "float64", "standard")


def slopes() -> Scorer:
    coef = np.random.default_rng(2).standard_normal((2, 10))
    return Scorer(candidates(), coef, np.zeros(2), "float64")


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
        "dtype": "float64",
    }


# Operands for each function and kind of rows: "2" and "3" are numbers of classes.
CASES: dict[tuple[str, str], Any] = {
    ("dkl.explain.sums", "column_sums"): lambda _: {"scaler": scaler("standard", D_IN)},
    ("dkl.explain.sums", "slope_sums"): lambda _: {"machine": slopes()},
    ("dkl.explain.sums", "sums_without"): lambda _: {
        "feature_map": candidates(),
        "groups": (np.array([2]), np.array([0, 3])),
        "dtype": "float64",
    },
    ("dkl.explain.sums", "wave_sums"): lambda _: {
        "parts": (waves([1], None), waves([0, 2], "standard")),
        "dtype": "float64",
    },
    ("dkl.linear.sums", "calibration_block"): judged,
    ("dkl.linear.sums", "held_out_block"): judged_candidates,
    ("dkl.linear.sums", "held_out_loss"): judged,
    ("dkl.linear.sums", "target_sums"): lambda kind: {
        "n_classes": None if kind == "targets" else int(kind),
        "class_weight": None if kind == "targets" else np.linspace(0.5, 1.5, int(kind)),
        "held_out": HeldOut(0.4, 1),
    },
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
    ("dkl.methods.peaks.sums", "peak_sums"): lambda kind: {
        "feature_map": candidates(),
        "targets": peaks(kind),
        "dtype": "float64",
    },
    ("dkl.methods.sums", "potential_sums"): lambda kind: {"problem": potentials(kind)},
    ("dkl.methods.sums", "sums_by_fold"): lambda kind: {
        "problem": potentials(kind),
        "folds": RowFolds(2, 3.0, 0),
    },
}


# Temperatures are of classes alone.
KINDS = [
    (*case, kind)
    for case in CASES
    for kind in ("2", "3", "targets")
    if case[1] != "calibration_block" or kind != "targets"
]


@pytest.mark.parametrize(("module", "name", "kind"), KINDS)
def test_block_functions_are_their_definitions(module: str, name: str, kind: str) -> None:
    block, operands = some_block(kind), CASES[module, name](kind)
    found = getattr(importlib.import_module(module), name)(block, operands)
    expected = getattr(definitions, name)(block, operands)
    # moments are kept in more parts than their definition names
    assert set(found) == set(expected) or name == "target_sums"
    for part, value in expected.items():
        rtol = 1e-7 if name == "slope_sums" else 1e-10
        np.testing.assert_allclose(found[part], value, rtol=rtol, atol=1e-10, err_msg=part)


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
        expected = definitions.shuffled_minibatch(block, operands, number, 7)
        expected_scaled = definitions.refinement_minibatch(block, operands, number, 7)
        if tile is None or scaled is None:
            assert (tile, scaled, expected, expected_scaled) == (None,) * 4
            sizes.append(0)
            continue
        assert expected is not None
        assert expected_scaled is not None
        for part, value in expected.items():
            np.testing.assert_allclose(getattr(tile, part), value, rtol=1e-10, atol=1e-12, err_msg=part)
        for part, value in expected_scaled.items():
            found = scaled.rows.X if part == "X" else getattr(scaled, part)
            np.testing.assert_allclose(found, value, rtol=1e-10, atol=1e-12, err_msg=part)
        sizes.append(len(tile.y))
    n_kept = int(np.sum(~operands["held_out"].mask(block.row_id)))
    assert sizes == [min(7, n_kept - start) for start in range(0, n_kept, 7)] + [0] * (5 - -(-n_kept // 7))

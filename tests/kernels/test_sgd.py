"""Steps by scikit-learn's rule are scikit-learn's: compiled, and in the CUDA kernel, on a GPU or played."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
from sklearn.linear_model import SGDClassifier

from dkl.kernels import device, generic
from dkl.kernels.sgd import cuda_source as sgd_source
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.kernels.sgd.steps import sgd_rows
from dkl.solvers.losses import LOG_LINK
from tests.definitions import blocks as definitions
from tests.kernels.cuda_sources import compiled, host_kernel, played

ERRORS = ["squared_error", "huber", "epsilon_insensitive", "pinball"]
N, M, K = 60, 7, 3

# between them all losses, penalties, schedules, means and kinds of rows
KINDS = {
    "hinge": SGDRule("hinge", average=10, alpha=0.01),
    "squared hinge": SGDRule("squared_hinge", "elasticnet", learning_rate="invscaling", alpha=0.05, eta0=0.1),
    "modified huber": SGDRule("modified_huber", None, learning_rate="adaptive", fit_intercept=False, average=1),
    "log loss of sparse rows": SGDRule("log_loss", "l1", learning_rate="constant", eta0=0.2, alpha=0.02, sparse=True),
    "squared error": SGDRule("squared_error", learning_rate="invscaling", eta0=0.05, power_t=0.25, average=30),
    "huber": SGDRule("huber", "l1", learning_rate="constant", eta0=0.1, alpha=0.03, epsilon=0.3),
    "epsilon": SGDRule("epsilon_insensitive", learning_rate="invscaling", eta0=0.1, epsilon=0.2),
    "poisson": SGDRule("poisson", learning_rate="invscaling", alpha=0.02, eta0=0.2, average=10),
    "gamma": SGDRule("gamma", "l1", learning_rate="constant", alpha=0.01, eta0=0.1),
    "pinball": SGDRule("pinball", "elasticnet", learning_rate="invscaling", alpha=0.05, eta0=0.1, epsilon=0.8),
    "pinball, averaged": SGDRule("pinball", learning_rate="constant", eta0=0.1, epsilon=0.3, average=1),
    "softmax": SGDRule("softmax", learning_rate="invscaling", alpha=0.02, eta0=0.5, average=20),
    "softmax of sparse rows": SGDRule("softmax", "l1", learning_rate="constant", eta0=0.2, alpha=0.02, sparse=True),
}

# the same with the penalty and the steps of machines, which a GPU takes
ON_GPU = {kind: replace(rule, penalty=rule.penalty and "l2", average=0) for kind, rule in KINDS.items()}


def rows(rule: SGDRule, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows (some of zeros), targets and weights (some 0) of three models."""
    generator = np.random.default_rng(3)
    X = generator.normal(size=(N, M)) * (generator.random((N, M)) < 0.6)
    X[[4, 20]] = 0.0
    scores = X @ generator.normal(size=(M, K)) + 0.3 * generator.normal(size=(N, K)) + 0.2
    Y = scores if rule.loss in ERRORS else np.where(scores > 0, 1.0, -1.0)
    if rule.loss in LOG_LINK:
        # some of them so far off that the step is bounded
        Y = np.exp(3.0 * scores)
    if rule.loss == "softmax":
        Y = np.where(scores == scores.max(axis=1, keepdims=True), 1.0, -1.0)
    return X.astype(dtype), Y, generator.integers(0, 3, size=(N, K)).astype(float)


def start(dtype: str = "float64", clock: float = 1.0) -> SGDModels:
    """Models that have come some way."""
    generator = np.random.default_rng(5)
    coef, intercept = generator.normal(size=(K, M)).astype(dtype), generator.normal(size=K)
    return SGDModels(coef, intercept, np.zeros_like(coef), np.zeros(K), clock)


def agree(found: SGDModels, expected: SGDModels, rtol: float = 1e-11) -> None:
    assert found.clock == expected.clock
    for name in ("coef", "intercept", "average_coef", "average_intercept"):
        value = getattr(expected, name)
        size = max(1.0, np.abs(value).max())
        np.testing.assert_allclose(getattr(found, name), value, rtol=0, atol=rtol * size, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_scikit_learns(kind: str) -> None:
    rule = KINDS[kind]
    X, Y, S = rows(rule)
    agree(sgd_rows(X, Y, S, start(), rule=rule), definitions.sgd_rows(X, Y, S, start(), rule=rule))


def test_float32_steps_are_scikit_learns() -> None:
    rule = KINDS["squared hinge"]
    X, Y, S = rows(rule, "float32")
    found = sgd_rows(X, Y, S, start("float32"), rule=rule)
    assert found.coef.dtype == np.float32
    agree(found, definitions.sgd_rows(X, Y, S, start("float32"), rule=rule), 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_on_rows_of_another_namespace_are_those_on_numpys(kind: str) -> None:
    rule = KINDS[kind]
    X, Y, S = rows(rule)
    strict: Any = array_api_strict.asarray(X)
    agree(sgd_rows(strict, Y, S, start(), rule=rule), sgd_rows(X, Y, S, start(), rule=rule))


@pytest.mark.parametrize("kind", ["hinge", "modified huber", "squared error", "poisson", "softmax"])
def test_two_calls_are_one(kind: str) -> None:
    """But for the l1 penalty, whose debt is of one call, as in scikit-learn."""
    rule = KINDS[kind]
    X, Y, S = rows(rule)
    half = sgd_rows(X[:25], Y[:25], S[:25], start(), rule=rule)
    agree(sgd_rows(X[25:], Y[25:], S[25:], half, rule=rule), sgd_rows(X, Y, S, start(), rule=rule))


def test_the_mean_of_truncated_iterates_is_refused() -> None:
    rule = SGDRule("hinge", "l1", average=1)
    with pytest.raises(ValueError, match=r"average=1 with penalty='l1'.*set average=False or penalty='l2'"):
        sgd_rows(*rows(rule), start(), rule=rule)


@played
@pytest.mark.parametrize(("kind", "dtype"), list(zip(ON_GPU, cycle(["float32", "float64"]))))
def test_the_kernel_takes_the_same_steps(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads of the CPU play those of a block: what a GPU is launched with, and what it does."""
    rule = ON_GPU[kind]
    assert rule.suits_gpu
    monkeypatch.setattr(device, "GROUP", 2)
    # batches of which the last is short: 60 rows
    monkeypatch.setattr(device, "_BATCH_ROWS", 25)
    monkeypatch.setattr(device, "sgd_source", lambda rule, dtype: sgd_source.sgd_source(rule, dtype, 2))
    monkeypatch.setattr(generic, "compiled", lambda xp, source, name: host_kernel(source, name))
    X, Y, S = rows(rule, dtype)
    before = start(dtype, clock=4.0)
    found = device.sgd_rows(X, Y, S, before, rule)
    assert found.coef.dtype == dtype
    agree(found, sgd_rows(X, Y, S, before, rule=rule), {"float32": 1e-5, "float64": 1e-12}[dtype])
    agree(before, start(dtype, clock=4.0), 0.0)


@pytest.mark.parametrize(("kind", "name"), [("hinge", "sgd_shares"), ("softmax", "sgd_jointly")])
def test_the_kernel_compiles(kind: str, name: str, tmp_path: Path) -> None:
    assert name in compiled(sgd_source.sgd_source(ON_GPU[kind], np.dtype("float32")), tmp_path)


@played
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batches_are_scikit_learns_steps_on_wide_rows(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More columns than rows of a batch, and strong shrinking: as `SGDClassifier` has it."""
    monkeypatch.setattr(device, "GROUP", 2)
    monkeypatch.setattr(device, "_BATCH_ROWS", 16)
    monkeypatch.setattr(device, "sgd_source", lambda rule, dtype: sgd_source.sgd_source(rule, dtype, 2))
    monkeypatch.setattr(generic, "compiled", lambda xp, source, name: host_kernel(source, name))
    generator = np.random.default_rng(0)
    X = (generator.normal(size=(150, 40)) / 6.0).astype(dtype)
    y = np.where(X[:, 0] * X[:, 1] + 0.1 * X[:, 2] > 0, 1.0, -1.0)
    known = SGDClassifier(alpha=0.05, shuffle=False)
    known.partial_fit(X, y, classes=[-1.0, 1.0])
    zeros = SGDModels(np.zeros((1, 40), dtype), np.zeros(1), np.zeros((1, 40), dtype), np.zeros(1))
    rule = SGDRule("hinge", alpha=0.05)
    found = device.sgd_rows(X, y[:, None], np.ones((150, 1)), zeros, rule)
    tolerance = {"float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(found.coef, known.coef_, rtol=0, atol=tolerance)
    np.testing.assert_allclose(found.intercept, known.intercept_, rtol=0, atol=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_takes_the_steps_of_the_cpu(kind: str, dtype: str) -> None:
    rule = KINDS[kind]
    X, Y, S = rows(rule, dtype)
    found = sgd_rows(device.rows_on(X, "gpu"), Y, S, start(dtype), rule=rule)
    agree(found, sgd_rows(X, Y, S, start(dtype), rule=rule), {"float32": 1e-5, "float64": 1e-11}[dtype])

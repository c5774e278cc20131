"""Kernels are compiled once: beforehand where that is asked for, else by the first fit, which says so."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import numba
import pytest

from dkl import process
from dkl.bench import warming
from dkl.bench.warming import Compiled, compiling
from dkl.cli.command import Running
from dkl.cli.warmup_command import warmup
from dkl.process import telling_of_compilation

# Other rows than those of the warm-up, in other shapes: what a user does next, and what it compiles.
USE = """
import sys
import numpy as np
from scipy import sparse
import dkl
from dkl.bench.warming import compiling
from dkl.explain import contributions, importance
from dkl.process import compiling_at_once
X = np.random.default_rng(1).normal(size=(420, 9))
few = sparse.random_array((350, 70), density=0.2, format="csr", random_state=1)
# As on many rows, for which NumPy would be too slow.
with compiling() as compiled, compiling_at_once():
    for y in (X[:, 0] > 0.1, np.digitize(X[:, 1], [-1, 0, 1]), X[:, 2] ** 2 + X[:, 3]):
        machine = dkl.KernelRegressor if y.dtype.kind == "f" else dkl.KernelClassifier
        for effort in ("fast", "balanced"):
            model = machine(effort=effort, random_state=0, progress=False).fit(X, y)
        model.predict(X)
        importance(model, X)
        contributions(model, X[:3], X)
        machine(random_state=0, progress=False).fit(few, y[:350])
        for name in ("random", "aligned", "margin", "steps", "nystrom", "peaks", "leverage"):
            machine(name, random_state=0, progress=False).fit(X.astype(np.float32), y)
    joint = dkl.KernelClassifier("random", loss="softmax", solver="sgd", random_state=0, progress=False)
    joint.fit(X, np.digitize(X[:, 1], [-1, 0, 1]))
    dkl.create_dataset(sys.argv[1], X, X[:, 0] > 0)
    dkl.KernelClassifier(random_state=0, progress=False).fit(dkl.open_dataset(sys.argv[1])).predictor().predict(X[0])
print("\\n".join(compiled.names))
"""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_is_compiled_after_a_warmup(tmp_path: Path) -> None:
    given = {"env": {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}, "check": True, "text": True}
    run = subprocess.run([sys.executable, "-m", "dkl", "warmup", "--json"], capture_output=True, **given)
    assert '"compiled": 0' not in run.stdout
    command = [sys.executable, "-c", USE, str(tmp_path / "rows.zarr")]
    used = subprocess.run(command, capture_output=True, **given)
    assert used.stdout.strip() == ""
    # the second warm-up finds all of it
    again = subprocess.run([sys.executable, "-m", "dkl", "warmup", "--json"], capture_output=True, **given)
    assert '"compiled": 0' in again.stdout


def test_a_warmup_tells_all_that_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the compiler's share alone, which is the smaller part of it."""

    found: list[Compiled] = []

    def kernel(x: float) -> float:
        return x + 1.0

    def small(folder: str, said: Callable[[str, float], None]) -> Compiled:
        with compiling() as compiled:
            numba.njit(kernel)(1.0)
            sum(range(3_000_000))
        found.append(compiled)
        return compiled

    monkeypatch.setattr(warming, "warm_up", small)
    before = time.process_time()
    facts = warmup(Running(quiet=True)).facts
    assert facts["compiled"] == 1
    assert before - 0.1 <= facts["processor_seconds"] <= time.process_time() + 0.1
    assert found[0].seconds > 0.0
    assert facts["compiling_seconds"] == round(found[0].seconds, 1) <= facts["seconds"] + 0.1


def test_compilation_is_told_once_a_process(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_COMPILATION_TOLD", type(process._COMPILATION_TOLD)())

    def kernel(x: float) -> float:
        return x + 1.0

    with caplog.at_level(logging.WARNING, "dkl"):
        for module in ("elsewhere.kernels", "dkl.kernels.one", "dkl.kernels.two"):
            kernel.__module__ = module
            with compiling() as compiled, telling_of_compilation():
                numba.njit(kernel)(1.0)
            assert compiled.names == [f"{module}.kernel"]
            assert compiled.seconds > 0.0
            assert len(caplog.records) == (module != "elsewhere.kernels")
    assert "dkl warmup" in caplog.text


def test_kernels_are_compiled_in_each_process_where_no_folder_can_be_written() -> None:
    """As in a container with a read-only root, where not even `import dkl.kernels.sincos` worked."""
    text = """
        from numba.core import caching
        caching.CacheImpl._locator_classes = []
        import numpy as np
        from dkl.kernels.sincos import cos_sin_rows
        from dkl.process import telling_of_compilation
        with telling_of_compilation():
            cos_sin_rows(*np.zeros((3, 1)))
        print(cos_sin_rows.stats.cache_path)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "None"
    assert ran.stderr.count("NUMBA_CACHE_DIR") == 1
    assert "kept for later" not in ran.stderr

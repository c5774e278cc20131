"""What each pass of each method asks of a GPU for a block, and of the host: `python -m tests.gpu_counts [--write]`.

Every method and solver is fitted on the played GPU, which counts calls, waits, copies and bytes; targets and weights
of a block count what NumPy does with them. The table, with the date and the commit, is printed, or with --write takes
the place of the one in examples/benchmarks/gpu.md. A test bounds it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dask
import numpy as np
import pandas as pd
from sklearn.base import clone

from dkl.data.create import create_dataset
from dkl.explain.contributions import background_of
from dkl.explain.dependence import partial_dependence
from dkl.explain.importance import importance
from dkl.features.dictionaries import Steps
from dkl.features.families import ArcCosine, Coordinates, Gaussian, Matern
from dkl.features.harmonics import SphericalHarmonics
from dkl.kernels import device
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.density.joint_learner import JointFeatures
from dkl.methods.density.learner import TunedClassifier, TunedRegressor
from dkl.methods.dictionaries.landmarks import Landmarks
from dkl.methods.landmarks.learner import LandmarkFeatures
from dkl.methods.leverage.learner import LeverageFeatures
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.nystrom.learner import NystromFeatures
from dkl.methods.peaks.learner import PeakFeatures
from dkl.methods.posterior.learner import PosteriorFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.methods.steps.learner import StepFeatures
from dkl.model_selection.tuning import tune
from dkl.passes import chain
from dkl.passes.loop import SumReduction
from dkl.passes.reading import LOADER
from dkl.passes.row_columns import RowColumns
from dkl.protocols.records import Fold

PAGE = Path(__file__).parents[1] / "examples" / "benchmarks" / "gpu.md"
BEGIN, END = "<!-- made by python -m tests.gpu_counts --write -->", "<!-- end -->"
# Rows of each of the two blocks.
N_ROWS = 601

FEATURES: dict[str, Any] = {
    "random": RandomFeatures(Gaussian(2.0), n_features=20),
    "standardised": RandomFeatures(Gaussian(2.0), n_features=20, scaling="standard"),
    "by quantiles": RandomFeatures(Gaussian(2.0), n_features=20, scaling="quantile"),
    "aligned": AlignedFeatures(Gaussian(2.0), n_candidates=60, n_features=20),
    "posterior": PosteriorFeatures(Gaussian(2.0), n_candidates=60, n_features=20),
    "leverage": LeverageFeatures(Gaussian(2.0), n_candidates=60, n_features=20),
    "joint": JointFeatures(Gaussian(2.0), n_candidates=40, n_features=20, tol=0.05),
    "landmarks": LandmarkFeatures(n_landmarks=10, n_candidates=60),
    "shared landmarks": LandmarkFeatures(n_landmarks=10, n_candidates=60, pool="shared"),
    "peaks": PeakFeatures(n_features=12, chains=10, steps=4, noise=0.0),
    "corrective": MarginFeatures(n_features=12),
    "game": MarginFeatures(Gaussian(2.0), n_features=6, solver="game"),
    "structured": RandomFeatures(Gaussian(2.0, sampling="structured"), n_features=20),
    "harmonics": AlignedFeatures(SphericalHarmonics(max_degree=3, project=True), n_features=10),
    "steps": StepFeatures(n_features=12),
    "nystrom": NystromFeatures(Gaussian(2.0), n_features=12),
}


# Small fits of all methods, so that every block function that a GPU computes is met: (targets, fit).
_TUNED: dict[str, Any] = {"n_features": 12, "tol": 0.05, "device": "gpu", "random_state": 0, "dtype": "float64"}
_JOINT: dict[str, Any] = {"n_candidates": 16, "n_features": 8, **{k: v for k, v in _TUNED.items() if k != "n_features"}}


def _newton(loss: str, **options: Any) -> Any:
    machine = KernelRegressor if loss in ("squared_error", "huber", "pinball", "poisson", "gamma") else KernelClassifier
    features = RandomFeatures(Gaussian(2.0), n_features=12, dtype="float64")
    given = {"solver": "newton", "alpha": 1e-3, "device": "gpu", "random_state": 0, **options}
    return machine(features, loss=loss, **given)


FITS: dict[str, tuple[str, Any]] = {
    **{name: ("classes", FEATURES[name]) for name in ("aligned", "posterior", "leverage", "joint", "landmarks")},
    **{name: ("classes", FEATURES[name]) for name in ("shared landmarks", "corrective", "harmonics")},
    **{name: ("classes", FEATURES[name]) for name in ("standardised", "peaks")},
    "aligned, numbers": ("numbers", FEATURES["aligned"]),
    "peaks on a grid": ("two", PeakFeatures(n_features=4, method="grid")),
    "game, excessive gap": (
        "two",
        MarginFeatures(Coordinates(), n_features=3, solver="game", dynamics="excessive-gap", rounds=2),
    ),
    # in float32 a row at the edge of a bin, or of the margin, is on the other side of it on another device
    "game": ("classes", MarginFeatures(Gaussian(2.0), n_features=6, solver="game", dtype="float64")),
    "refined": ("two", MarginFeatures(n_features=8, refine=1, dtype="float64")),
    "joint, squared hinge": ("two", JointFeatures(Gaussian(2.0), loss="squared_hinge", **_JOINT)),
    "joint, numbers": ("numbers", JointFeatures(Gaussian(2.0), **_JOINT)),
    "tuned, hinge": ("classes", TunedClassifier(**_TUNED)),
    "tuned, squared hinge": ("two", TunedClassifier(loss="squared_hinge", **_TUNED)),
    "tuned, squared error": ("numbers", TunedRegressor(**_TUNED)),
    "tuned, float32": ("numbers", TunedRegressor(**{**_TUNED, "dtype": "float32"})),
    "tuned, adam": ("two", TunedClassifier(solver="adam", epochs=1, **_TUNED)),
    "corrective, numbers": ("numbers", MarginFeatures(n_features=8)),
    "dictionaries": (
        "two",
        MarginFeatures(family=[Gaussian(2.0), Steps(), Landmarks()], n_features=8, search_rows=300),
    ),
    "steps of all rows": ("classes", StepFeatures(n_features=8, search_rows=None)),
    "metric": ("two", NystromFeatures(Gaussian(2.0), n_features=8, metric="diagonal")),
    "metric of all columns": ("two", NystromFeatures(Matern(0.5, 2.0), n_features=8, metric="full")),
    **{f"newton, {loss}": ("positive", _newton(loss)) for loss in ("huber", "pinball", "poisson", "gamma")},
    "newton, two targets": ("two numbers", _newton("squared_error")),
    "newton, log loss of classes": ("classes", _newton("log_loss")),
    "penalty of numbers": ("numbers", _newton("squared_error", alpha="auto")),
    "penalty of two classes": ("two", _newton("log_loss", alpha="auto")),
    "penalty of three": ("classes", _newton("squared_hinge", alpha="auto")),
    "sgd": ("classes", _newton("hinge", solver="sgd", early_stopping=True, epochs=2)),
    "sgd, softmax": ("classes", _newton("softmax", solver="sgd", epochs=2)),
    "sgd, log loss": ("two", _newton("log_loss", solver="sgd", early_stopping=True, epochs=2, calibrate=True)),
}


def _explained(name: str) -> Any:
    """What a model says of its columns."""

    def explain(data: Any) -> None:
        model = _newton("squared_hinge", alpha=1e-3)
        if name == "slopes of ramps":
            model.set_params(features=RandomFeatures(ArcCosine(2), n_features=12, dtype="float64"))
        model.fit(data)
        importance(model, data)
        partial_dependence(model, data, [0, (1, 3)], resolution=4)
        background_of(model, data, groups={"both": [1, 3]})

    return explain


def _tuned_trials(data: Any) -> None:
    """Trials that need the sums of one pass alone."""
    model = TunedRegressor(**_TUNED)
    tune(model, data, space={"lam": [1e-2, 1e-1]}, n_trials=2, n_initial=2, folds=2, random_state=0, refit=False)


FITS |= {
    "trials of tune": ("numbers", _tuned_trials),
    "texts and codes": ("table", _newton("log_loss")),
    "explained": ("classes", _explained("waves")),
    "explained, ramps": ("classes", _explained("slopes of ramps")),
}
# Passes that compute on the host, whatever else a fit does on a GPU: the page says why, and what they cost.
ON_HOST = frozenset(
    {
        *("sums of categories", "counts of column bins"),
        *("frequency grid", "frequency cells"),
    }
)


class HostRows(np.ndarray):
    """Targets or weights of a block on the host, which count what NumPy computes with them; to look rows up is free."""

    operations = 0

    @classmethod
    def of(cls, values: np.ndarray | None) -> Any:
        return None if values is None else values.view(cls)

    @classmethod
    def _called(cls, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        cls.operations += 1
        made = call(*_bare(args), **{name: _bare(value) for name, value in options.items()})
        is_of_rows = isinstance(made, np.ndarray) and made.shape[:1] and len(made) > N_ROWS // 20
        return made.view(cls) if is_of_rows else made

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return self._called(getattr(ufunc, method), *inputs, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in _LOOKS:
            return super().__array_function__(function, types, args, options)
        return self._called(function, *args, **options)

    def astype(self, *args: Any, **options: Any) -> Any:
        return self._called(np.ndarray.astype, self, *args, **options)


_LOOKS = {np.shape, np.ndim, np.size, np.reshape, np.may_share_memory, np.result_type, np.empty_like, np.zeros_like}


def _bare(value: Any) -> Any:
    """A value without counting arrays inside."""
    if isinstance(value, HostRows):
        return value.view(np.ndarray)
    return type(value)(map(_bare, value)) if isinstance(value, tuple | list) else value


_as_array = np.asarray


def as_counted(values: Any, *args: Any, **options: Any) -> Any:
    """`numpy.asarray`, which would leave a counting array uncounted from then on."""
    made = _as_array(values, *args, **options)
    return HostRows.of(made) if isinstance(values, HostRows) and isinstance(made, np.ndarray) else made


@dataclass(frozen=True)
class Asked:
    """The most that a pass asks for one block, of those after the first of the pass.

    Parameters
    ----------
    name : str
    is_on_host : bool
        Whether it computes on the host altogether: nothing of it is counted then.
    launches, waits, copies : int
        Calls that start work on the GPU, waits for it, and copies to it.
    bytes_back : int
        Bytes that came to the host beside the sums and the columns that are written to files.
    written : int
        Bytes of these columns.
    operations : int
        NumPy's, on targets and weights of all rows.
    """

    name: str
    is_on_host: bool = False
    launches: int = 0
    waits: int = 0
    copies: int = 0
    bytes_back: int = 0
    written: int = 0
    operations: int = 0

    def most(self, other: Asked) -> Asked:
        numbers = ("launches", "waits", "copies", "bytes_back", "written", "operations")
        return replace(self, **{name: max(getattr(self, name), getattr(other, name)) for name in numbers})


class Counter:
    """Counts while passes run.

    Parameters
    ----------
    check : callable or None
        ``check(reduction, block, row columns, sums)`` looks at the sums of each block on the GPU; nothing of it counts.
    """

    def __init__(self, check: Callable[..., None] | None = None) -> None:
        self.passes: dict[str, Asked] = {}
        self._check = check
        self._back = 0

    def note(self, asked: Asked, block: int) -> None:
        # The first block brings maps and models to the GPU.
        if block or asked.is_on_host:
            self.passes[asked.name] = self.passes.get(asked.name, asked).most(asked)

    @contextmanager
    def counted(self, name: str, block: int, back: int = 0, written: int = 0) -> Iterator[None]:
        """What is asked within, of which so many bytes are sums and columns that come to the host by rights."""
        import cupy

        before, copies, operations = dict(cupy.counts), len(cupy.copied), HostRows.operations
        self._back = 0
        yield
        launches, waits = (cupy.counts[what] - before[what] for what in ("launches", "waits"))
        rest = self._back - back - written
        # a few numbers say what is wrong with rows; fewer bytes than rows are none of a row
        rest = rest if rest >= N_ROWS else 0
        found = Asked(name, False, launches, waits, len(cupy.copied) - copies, rest, written)
        self.note(replace(found, operations=HostRows.operations - operations), block)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While this holds, sums of blocks and folds are counted."""
        import cupy

        of_block, get, fold_of, values = SumReduction.of_block, cupy.ndarray.get, chain.fold_of, RowColumns.values

        def watched_get(x: Any) -> np.ndarray:
            self._back += x._values.nbytes
            return get(x)  # type: ignore[no-any-return]

        def watched_block(reduction: Any, block: Any, columns: Any) -> Any:
            record = reduction.record
            if not device.is_on_gpu(block.X):
                self.note(Asked(_plain(record.name), True), block.index)
                return of_block(reduction, block, columns)
            # sums come in double precision
            back = sum(8 * prod(accumulator.shape) for accumulator in record.accumulators.values())
            of_columns = [] if columns is None else [columns.values(name, block.index) for name in record.writes]
            watched = replace(block, y=HostRows.of(block.y), weight=HostRows.of(block.weight))
            with self.counted(_plain(record.name), block.index, back, sum(each.nbytes for each in of_columns)):
                found = of_block(reduction, watched, columns)
            if self._check is not None:
                self._check(reduction, block, columns, found)
            return found

        def watched_fold(work: Any) -> Fold:
            fold = fold_of(work)
            name, state = _plain(fold.name), sum(getattr(part, "nbytes", 8) for part in vars(fold.initial).values())

            def prepare(block: Any, operands: Any, number: int) -> Any:
                watched = replace(block, y=HostRows.of(block.y), weight=HostRows.of(block.weight))
                if name in ON_HOST:
                    self.note(Asked(name, True), block.index)
                    return fold.prepare(block, operands, number)
                with self.counted(f"{name}: rows", 1):
                    return fold.prepare(watched, operands, number)

            def step(state_before: Any, piece: Any, operands: Any) -> Any:
                if name in ON_HOST:
                    return fold.step(state_before, piece, operands)
                with self.counted(f"{name}: steps", 1, 2 * state):
                    return fold.step(state_before, piece, operands)

            return replace(fold, prepare=prepare, step=step)

        with ExitStack() as stack:
            for owner, attribute, with_ in (
                (cupy.ndarray, "get", watched_get),
                (SumReduction, "of_block", watched_block),
                (chain, "fold_of", watched_fold),
                (RowColumns, "values", lambda columns, name, index: HostRows.of(values(columns, name, index))),
                (np, "asarray", as_counted),
            ):
                stack.enter_context(patch.object(owner, attribute, with_))
            yield


def _plain(name: str) -> str:
    """The name of a pass without the number of its epoch."""
    return re.sub(r",? epoch \d+$|(?<=epoch) \d+$", "", name)


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of 4 columns and three classes."""
    X = np.random.default_rng(0).normal(size=(n, 4))
    return X, (X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 1)


def table_rows(X: np.ndarray) -> pd.DataFrame:
    """Rows of a table: numbers, free text, and a column of 60 categories, which are stored as codes."""
    rng = np.random.default_rng(2)
    texts = [" ".join(f"word{word}" for word in rng.choice(30, 8)) for _ in range(len(X))]
    return pd.DataFrame(
        {"x": X[:, 0], "comment": texts, "shop": [f"s{shop}" for shop in rng.integers(60, size=len(X))]}
    )


def counted(name: str, folder: Path, check: Callable[..., None] | None = None) -> dict[str, Asked]:
    """What the passes of a fit ask for a block, by their names; rows have weights, and lie in a store of two blocks."""
    kind, fit = FITS[name]
    X, classes = rows(2 * N_ROWS)
    several = np.column_stack([X[:, 0] * X[:, 1], X[:, 2]])
    targets = {"classes": classes, "two": classes > 0, "numbers": several[:, 0], "two numbers": several}
    targets["table"] = classes
    y = targets[kind] if kind in targets else np.exp(0.3 * several[:, 0])
    weight = np.random.default_rng(1).integers(1, 4, len(X)).astype(np.float64)
    columns = 2 if name == "peaks on a grid" else 4
    given = table_rows(X) if kind == "table" else X[:, :columns]
    data = create_dataset(folder / "rows.zarr", given, y, sample_weight=weight, rows_a_block=N_ROWS)
    counter = Counter(check)
    LOADER.clear()
    with dask.config.set(scheduler="synchronous"), counter.watching():
        if hasattr(fit, "fit"):
            clone(fit).set_params(device="gpu", random_state=0).fit(data)
        else:
            fit(data)
    LOADER.clear()
    return counter.passes


def table(found: dict[str, dict[str, Asked]]) -> str:
    """The most of any pass of each fit, as Markdown."""
    lines = ["| fit | calls | waits | copies | bytes of a row to the host | to files | operations | passes |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name, passes in found.items():
        there = [one for one in passes.values() if not one.is_on_host]
        numbers = [max((getattr(one, what) for one in there), default=0) for what in ("launches", "waits", "copies")]
        back, written = (max((getattr(one, what) for one in there), default=0) for what in ("bytes_back", "written"))
        numbers += [-(-back // N_ROWS), written // N_ROWS, max((one.operations for one in there), default=0)]
        names = ", ".join(f"{one.name} (host)" if one.is_on_host else one.name for one in passes.values())
        lines.append(" | ".join([f"| {name}", *map(str, numbers), f"{names} |"]))
    return "\n".join(lines)


def table_of_page() -> str:
    """The table that the page has, without the line that says when it was made."""
    made = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()
    return made.partition("\n\n")[2].strip()


def main() -> None:
    """Print the table, or write it into the page."""
    sys.path.insert(0, str(Path(__file__).parent / "played_gpu"))
    found = {}
    for name in FITS:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = counted(name, Path(folder))
        sys.stderr.write(f"{name}\n")
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
    ).stdout
    made = f"Made on {datetime.now(UTC):%d %B %Y}, at commit {commit.strip()}.\n\n{table(found)}"
    if "--write" not in sys.argv[1:]:
        sys.stdout.write(f"{made}\n")
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The command `tune`: hyper-parameters by cross-validation, and the model that they give."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, command, facts_table
from dkl.cli.data_commands import HeldOptions, Store
from dkl.cli.model_commands import chosen_split
from dkl.cli.model_options import FeatureOptions, MachineOptions, estimator_from
from dkl.cli.output_checks import check_before
from dkl.data.store.outputs import written_whole
from dkl.protocols.estimators import Estimator

# Bandwidths that are tried beside the median one, in units of a usual median distance.
_BANDWIDTHS = (0.35, 2.5)
# Landmarks about which sizes are searched.
_LANDMARKS = 400
# Trials that are shown, the best first.
_SHOWN = 5
# What a table of trials begins with: such a file may be replaced.
_TABLE_HEAD = b"trial,"


@dataclass(frozen=True)
class TuneOptions:
    """How the search is done."""

    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RANGE",
            help="What to search: NAME=LOW:HIGH, NAME=LOW:HIGH:log (int, log-int), or a JSON list. Repeat it.",
            show_default="by the model: see below",
        ),
    ] = None
    trials: Annotated[int, typer.Option(help="Sets of parameters to try.")] = 30
    timeout: Annotated[float | None, typer.Option(help="Seconds after which no further fit begins.")] = None
    folds: Annotated[float, typer.Option(help="Folds, or a share such as 0.2 held out once.")] = 5
    scoring: Annotated[str | None, typer.Option(help="A scorer of scikit-learn (default: accuracy or R^2).")] = None
    parallel: Annotated[int, typer.Option(help="Trials judged at the same time, whole fits on workers.")] = 1


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    example = "dkl tune rows.zarr model.zarr --space alpha=1e-7:1e-2:log --trials 30"
    command(app, "tune", epilog=f"Example: [bold]{example}[/bold]")(tune)


def tune(
    store: Store,
    model: Annotated[str, typer.Argument(help="Where to write the best model.", show_default=False)],
    search: TuneOptions,
    features: FeatureOptions,
    machine: MachineOptions,
    compute: Compute,
    running: Running,
    *,
    held: HeldOptions,
    table: Annotated[str | None, typer.Option(help="Write the trials to this CSV file, too.")] = None,
    split: Annotated[str | None, typer.Option(help="Rows to search on (default: train where it is there).")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Folder or URL: a search that was broken off goes on from here when run again.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a model, and a table of trials, that are there.")
    ] = False,
) -> Result:
    """Search for the hyper-parameters of a model by cross-validation, fit it with the best, and save it.

    A Gaussian process on the scores so far says what is tried next. The same seed gives the same trials. Without
    --space: the penalty, the number of features, and where the learner has them scaling and bandwidth. Without
    --learner these are those of a kernel at landmarks (nystrom), since auto chooses all of this by itself.
    """
    from dkl.data.together.telling import kind_of_split
    from dkl.model_io import is_part_of_a_model
    from dkl.model_selection.tuning import tune as search_for

    check_before(model, "model", overwrite=overwrite, inputs=[store, checkpoint], belongs=is_part_of_a_model)
    if table is not None:
        read = [store, model, checkpoint]
        check_before(table, "table of trials", overwrite=overwrite, inputs=read, is_own=_is_table_of_trials)
    dataset = held.of(chosen_split(store, split, "train"))
    if features == FeatureOptions():
        size = max(1, min(_LANDMARKS, dataset.n_rows // 4))
        is_set = "features__n_landmarks" in machine.settings
        features = replace(features, learner="nystrom", features=None if is_set else size)
    estimator = estimator_from(features, machine, task=dataset.task, compute=compute, running=running)
    # The estimator is made here, so that options with no meaning are refused before the search begins.
    started = time.perf_counter()
    with computing_on(compute):
        tuning = search_for(
            estimator,
            dataset,
            space=space_from(search.space) if search.space else default_space(estimator, dataset.n_columns),
            n_trials=search.trials,
            timeout=search.timeout,
            # The option is a number with a point, and `dkl.tune` tells folds from a share by the type.
            folds=int(search.folds) if search.folds >= 1 else search.folds,
            scoring=search.scoring,
            parallel=search.parallel,
            random_state=machine.seed,
            checkpoint=checkpoint,
            progress=running.progress,
        )
    tuning.best_model_.save(model, overwrite=overwrite)
    if table is not None:
        with written_whole(table) as hidden:
            tuning.trials.to_csv(hidden)
    facts = {
        "model": model,
        "best_score": tuning.best_score_,
        "best_params": tuning.best_params_,
        "trials": len(tuning.trials),
        # A trial that failed has its error in the table, and an empty text stands for none.
        "failed": int((tuning.trials["error"] != "").sum()),
        "rows": dataset.n_rows,
        "held_out": kind_of_split(dataset),
        "seconds": round(time.perf_counter() - started, 3),
    }
    names = list(tuning.best_params_)
    view = Table(title=f"the best of {len(tuning.trials)} trials", box=None, padding=(0, 2, 0, 0))
    for name in ("trial", "score", *names):
        view.add_column(name, justify="right")
    # A stable order leaves the earlier one of equal trials in front, which is the one that is best.
    ordered = tuning.trials.sort_values("score", ascending=False, kind="stable").head(_SHOWN)
    for trial, row in ordered.iterrows():
        cells = (trial, row["score"], *(row[name] for name in names))
        view.add_row(*(Text(f"{cell:.5g}" if isinstance(cell, float) else str(cell)) for cell in cells))
    return Result(facts, Group(facts_table(facts), view))


def _is_table_of_trials(path: Path) -> bool:
    """Whether a file is a table that this command wrote."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.readline(len(_TABLE_HEAD)).startswith(_TABLE_HEAD)


def space_from(pairs: list[str]) -> dict[str, Any]:
    """The space that ``NAME=LOW:HIGH:SCALE`` and ``NAME=[...]`` describe.

    Raises
    ------
    typer.BadParameter
        If one of them is neither.
    """
    space: dict[str, Any] = {}
    for pair in pairs:
        # Names of nested parameters hold no equals sign, and values may.
        name, _, text = pair.partition("=")
        try:
            if text.startswith("["):
                space[name] = json.loads(text)
                continue
            low, _, rest = text.partition(":")
            high, _, scale = rest.partition(":")
            # Whole numbers stay whole, since `dkl.tune` takes a range between two of them for one of whole numbers.
            ends = [int(end) if end.lstrip("+-").isdigit() else float(end) for end in (low, high)]
        except ValueError:
            raise typer.BadParameter(
                f"--space takes NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=[...], not {pair!r}"
            ) from None
        space[name] = (*ends, scale) if scale else tuple(ends)
    return space


def default_space(estimator: Estimator, n_columns: int) -> dict[str, Any]:
    """What is searched of a model where nobody says it: what most changes its score, in ranges that hold for most rows.

    Parameters
    ----------
    estimator : kernel machine on a learner, or a tuned machine
    n_columns : int
        d, of the rows.
    """
    known = estimator.get_params(deep=True)
    penalty = "lam" if "lam" in known else "alpha"
    space: dict[str, Any] = {penalty: (1e-7, 1e-2, "log")}
    prefix = "features__" if "features__random_state" in known else ""
    for name in ("n_features", "n_landmarks"):
        size = known.get(f"{prefix}{name}")
        if isinstance(size, int):
            # Half and twice as many as were asked for: sizes are what a fit costs, so that the user's own decides.
            space[f"{prefix}{name}"] = (max(1, size // 2), 2 * size, "log-int")
    if "scaling" in {name.removeprefix(prefix) for name in known}:
        space[f"{prefix}scaling"] = ["standard", "quantile"]
    if isinstance(usual_factor := known.get(f"{prefix}sigma_factor"), int | float):
        space[f"{prefix}sigma_factor"] = (0.25 * usual_factor, 4.0 * usual_factor, "log")
    elif getattr(known.get(f"{prefix}family"), "needs_bandwidth", False):
        family = known[f"{prefix}family"]
        # Two rows of d columns of variance 1 are sqrt(2 d) from each other: such is the median distance, about.
        usual = math.sqrt(2.0 * n_columns)
        space[f"{prefix}family"] = [family, *(replace(family, sigma=factor * usual) for factor in _BANDWIDTHS)]
    return space

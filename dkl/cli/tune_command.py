"""The command `tune`: searches hyper-parameters by cross-validation, and fits the best model."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, facts_table, said_if_interrupted, table_of
from dkl.cli.data_commands import HeldOptions, Store
from dkl.cli.model_commands import chosen_split
from dkl.cli.model_options import FeatureOptions, MachineOptions, estimator_from
from dkl.cli.output_checks import check_before, check_model
from dkl.data.store.outputs import written_whole
from dkl.protocols.estimators import Estimator

# Number of landmarks from whose half to whose double sizes are searched.
_LANDMARKS = 400
# Number of trials that are shown, the best ones.
_SHOWN = 5
# The first bytes of a table of trials, by which a file is recognized that may be replaced.
_TABLE_HEAD = b"trial,"


@dataclass(frozen=True)
class TuneOptions:
    """Options for the search."""

    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RANGE",
            help="Parameter to search: NAME=LOW:HIGH, NAME=LOW:HIGH:log (int, log-int), or a JSON list. Repeat it.",
            show_default="depends on the model: see above",
        ),
    ] = None
    trials: Annotated[int, typer.Option(help="Number of trials.")] = 30
    timeout: Annotated[float | None, typer.Option(help="Seconds after which no further fit begins.")] = None
    folds: Annotated[float, typer.Option(help="Number of folds, or a share such as 0.2 that is held out once.")] = 5
    scoring: Annotated[str | None, typer.Option(help="A scorer of scikit-learn (default: accuracy or R^2).")] = None
    parallel: Annotated[int, typer.Option(help="Number of trials at a time, each as a whole fit on a worker.")] = 1


def tune(
    store: Store,
    model: Annotated[str, typer.Argument(help="Path or URL of the model to write.", show_default=False)],
    search: TuneOptions,
    features: FeatureOptions,
    machine: MachineOptions,
    compute: Compute,
    running: Running,
    *,
    held: HeldOptions,
    table: Annotated[str | None, typer.Option(help="Also write the trials to this CSV file.")] = None,
    split: Annotated[str | None, typer.Option(help="Split for the search (default: train if it exists).")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Folder or URL from which an interrupted search resumes when run again.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing model and table of trials.")
    ] = False,
) -> Result:
    """Search for the hyper-parameters of a model by cross-validation, fit it with the best, and save it.

    A Gaussian process on the scores so far chooses the next trial. The same seed gives the same trials. Without
    --space the penalty and the number of features are searched, and scaling and bandwidth if the learner has them.
    Without --learner the model is a kernel at landmarks (nystrom), since auto makes all of these choices itself.
    """
    from dkl.data.together.messages import kind_of_split
    from dkl.model_selection.tuning import tune as search_for

    check_model(model, overwrite=overwrite, inputs=[store, checkpoint])
    if table is not None:
        read = [store, model, checkpoint]
        check_before(table, "table of trials", overwrite=overwrite, inputs=read, is_own=_is_table_of_trials)
    dataset = held.of(chosen_split(store, split, "train"))
    if features == FeatureOptions():
        size = max(1, min(_LANDMARKS, dataset.n_rows // 4))
        is_set = "features__n_landmarks" in machine.settings
        features = replace(features, learner="nystrom", features=None if is_set else size)
    estimator = estimator_from(features, machine, task=dataset.task, compute=compute, running=running)

    started = time.perf_counter()
    goes_on = "with --checkpoint FOLDER a search goes on where it was broken off"
    if checkpoint is not None:
        goes_on = "run again with the same checkpoint, the search goes on after the last finished trial"
    with said_if_interrupted(f"no model was written; {goes_on}"), computing_on(compute):
        tuning = search_for(
            estimator,
            dataset,
            space=space_from(search.space) if search.space else default_space(estimator, dataset.n_columns),
            n_trials=search.trials,
            timeout=search.timeout,
            # `dkl.tune` distinguishes a number of folds from a share by the type
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
        # the table has the error of each trial, an empty text without any
        "failed": int((tuning.trials["error"] != "").sum()),
        "rows": dataset.n_rows,
        "held_out": kind_of_split(dataset),
        "seconds": round(time.perf_counter() - started, 3),
    }
    names = list(tuning.best_params_)
    view = table_of("trial", "score", *names, title=f"the best of {len(tuning.trials)} trials")
    # stable, so that the first of equal trials, which is the best one, comes first
    ordered = tuning.trials.sort_values("score", ascending=False, kind="stable").head(_SHOWN)
    for trial, row in ordered.iterrows():
        cells = (trial, row["score"], *(row[name] for name in names))
        view.add_row(*(Text(f"{cell:.5g}" if isinstance(cell, float) else str(cell)) for cell in cells))
    return Result(facts, Group(facts_table(facts), view))


def _is_table_of_trials(path: Path) -> bool:
    """Whether a file begins like a table of this command."""
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
        # values may contain equals signs, names of parameters do not
        name, _, text = pair.partition("=")
        try:
            if text.startswith("["):
                space[name] = json.loads(text)
                continue
            low, _, rest = text.partition(":")
            high, _, scale = rest.partition(":")
            # `dkl.tune` searches whole numbers if both ends are integers
            ends = [int(end) if end.lstrip("+-").isdigit() else float(end) for end in (low, high)]
        except ValueError:
            raise typer.BadParameter(
                f"--space takes NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=[...], not {pair!r}"
            ) from None
        space[name] = (*ends, scale) if scale else tuple(ends)
    return space


def default_space(estimator: Estimator, n_columns: int) -> dict[str, Any]:
    """The default search space of a model: the parameters that affect its score most, in ranges for most datasets.

    Parameters
    ----------
    estimator : kernel machine on a learner, or a tuned machine
    n_columns : int
        d, the number of columns of the rows.
    """
    known = estimator.get_params(deep=True)
    penalty = "lam" if "lam" in known else "alpha"
    space: dict[str, Any] = {penalty: (1e-7, 1e-2, "log")}
    prefix = "features__" if "features__random_state" in known else ""
    for name in ("n_features", "n_landmarks"):
        size = known.get(f"{prefix}{name}")
        if isinstance(size, int):
            # from half to twice the user's size, as sizes determine the cost of a fit
            space[f"{prefix}{name}"] = (max(1, size // 2), 2 * size, "log-int")
    if "scaling" in {name.removeprefix(prefix) for name in known}:
        space[f"{prefix}scaling"] = ["standard", "quantile"]
    if isinstance(factor_now := known.get(f"{prefix}sigma_factor"), int | float):
        space[f"{prefix}sigma_factor"] = (0.25 * factor_now, 4.0 * factor_now, "log")
    elif getattr(known.get(f"{prefix}family"), "needs_bandwidth", False):
        from dkl.machines.suggest import BANDWIDTHS

        family = known[f"{prefix}family"]
        # the distance of two rows with d columns of variance 1 is about sqrt(2 d)
        typical_distance = math.sqrt(2.0 * n_columns)
        space[f"{prefix}family"] = [
            family,
            *(replace(family, sigma=factor * typical_distance) for factor in BANDWIDTHS if factor != 1.0),
        ]
    return space

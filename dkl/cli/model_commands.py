"""Commands on models: plan, fit, score, predict."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, facts_table, said_if_interrupted, table_of
from dkl.cli.data_commands import CsvOptions, HeldOptions, RoleOptions, ZeroBased, base_option
from dkl.cli.given_files import USUAL_MODEL, LikeFitOptions, Rows, RowsLikeFit, store_like_fit, store_of
from dkl.cli.model_options import FeatureOptions, MachineOptions, estimator_from
from dkl.cli.output_checks import check_model
from dkl.plain_text import in_columns
from dkl.progress import Tally, listening

if TYPE_CHECKING:
    from dkl.data.dataset import Dataset
    from dkl.data.labels import TaskChoice
    from dkl.explain.importance import Importance
    from dkl.model_selection.held_out_scores import Metric
    from dkl.protocols.estimators import FittedModel

Model = Annotated[str, typer.Argument(help="Path or URL of a model that dkl wrote.", show_default=False)]
Exposure = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="With --loss poisson or gamma: the column of exposures over which targets are counted, such as years. It "
        "is not a feature; score, predict and report use that of fit; predict --exposure '' predicts for one unit.",
    ),
]


def chosen_split(store: str, wanted: str | None, usual: str, task: TaskChoice = "auto") -> Dataset:
    """The split `wanted`; if that is None, the split `usual` if the store has it, else all rows. '' is all rows.

    Targets that were stored for the other task are converted to `task`.
    """
    from dkl.data.dataset import open_dataset
    from dkl.methods.validation import without_splits

    dataset = open_dataset(store)
    # `--split ''` means all rows of a store with splits
    name = wanted if wanted is not None else usual if usual in dataset.splits else ""
    dataset = dataset[name] if name else dataset
    return dataset if task == "auto" else without_splits(dataset).used_whole(None, None, task)


def plan(
    data: Rows,
    features: FeatureOptions,
    machine: MachineOptions,
    held: HeldOptions,
    compute: Compute,
    running: Running,
    *,
    roles: RoleOptions,
    text: CsvOptions,
    split: Annotated[str | None, typer.Option(help="Split to fit (default: train if it exists).")] = None,
    exposure: Exposure = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show every pass in order.")] = False,
) -> Result:
    """Estimate the cost of a fit (memory of a process, bytes read, passes, time) before anything runs.

    Files are first read into the store model.rows.zarr, which `dkl fit FILES model.zarr` uses again if they have not
    changed.
    """
    from dkl.planning import plan as plan_of

    of_files = machine.known_task or "auto"
    store, read = store_of(
        data, USUAL_MODEL, roles, text, held, compute=compute, running=running, seed=machine.seed, task=of_files
    )
    dataset = held.of(chosen_split(store, split, "train", machine.task or "auto"))
    with computing_on(compute):
        estimator = estimator_from(features, machine, task=dataset.task, compute=compute, running=running)
        planned = plan_of(estimator, dataset, exposure=exposure)
    # a tuned machine has no attribute `features`: it is its own learner
    features_given = getattr(estimator, "features", estimator)
    of_features = "features that it chooses" if features_given == "auto" else type(features_given).__name__
    names = " on ".join(dict.fromkeys((type(estimator).__name__, of_features)))
    said = [read, planned.summary, planned.cheaper, f"{names}, {planned.rows}", planned.memory]
    table = in_columns(planned.cells(verbose=verbose), left=1)
    facts = planned.facts | ({"store": store, "read": read} if read else {})
    return Result(facts, Text("\n".join([*filter(None, said), *table, planned.speed])))


def fit(
    data: Rows,
    model: Annotated[str, typer.Argument(help="Path or URL of the model to write.", show_default=False)],
    features: FeatureOptions,
    machine: MachineOptions,
    held: HeldOptions,
    compute: Compute,
    running: Running,
    *,
    roles: RoleOptions,
    text: CsvOptions,
    split: Annotated[str | None, typer.Option(help="Split to fit (default: train if it exists).")] = None,
    exposure: Exposure = None,
    interval_group: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="With --conformal-fraction: intervals and sets promise their coverage for each group in this column.",
        ),
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="Folder or URL from which an interrupted fit resumes when run again.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Like --checkpoint MODEL.checkpoint, a folder beside the model.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing model.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the reasons of all choices.")] = False,
) -> Result:
    """Learn features and a linear model on them, out of core, save the model, and score it on held-out rows.

    Without options everything is chosen from the rows, as by `dkl.KernelClassifier()` in Python, and the choices are
    reported. The same seed gives the same model on threads, on any number of workers, and after the loss of a worker.
    Files are first read into a store beside the model, model.rows.zarr, which is used again if they have not changed.
    """
    from dkl.machines.columns import TOO_GOOD
    from dkl.methods.provenance import summary_of
    from dkl.model_selection.held_out_scores import check_has_exposure, held_out_answers, metric_facts, scores_of

    # a fixed path, so that the same command finds it again
    if checkpoint is None and resume:
        checkpoint = f"{model.rstrip('/')}.checkpoint"
    check_model(model, overwrite=overwrite, inputs=[data, checkpoint])
    task = machine.task or "auto"
    # files are read for the task of the fit; rows of a store keep theirs, and the machine converts them
    of_files = machine.known_task or "auto"
    store, read = store_of(
        data, model, roles, text, held, compute=compute, running=running, seed=machine.seed, task=of_files
    )
    dataset = held.of(chosen_split(store, split, "train", task))
    estimator = estimator_from(features, machine, task=dataset.task, compute=compute, running=running)

    if checkpoint is not None:
        estimator.set_params(checkpoint=checkpoint)
    check_has_exposure(estimator, exposure)
    if interval_group is not None and getattr(estimator, "conformal_fraction", None) is None:
        raise ValueError(
            "--interval-group is of rows that are held out of the fit: say how many, as in --conformal-fraction 0.1"
        )
    # the listener adds up the passes of all stages
    tally = Tally()
    started = time.perf_counter()
    # with a checkpoint, a note of the fit says that it goes on
    goes_on = "" if checkpoint else "; with --resume or --checkpoint FOLDER a fit goes on where it was broken off"
    with said_if_interrupted(f"no model was written{goes_on}"), computing_on(compute), listening(tally):
        estimator.fit(dataset, **({} if exposure is None else {"exposure": exposure}))
        if interval_group is not None:
            estimator.conformalize_held_out(dataset, groups=interval_group)
    estimator.save(model, overwrite=overwrite)
    seconds = time.perf_counter() - started
    learned = getattr(estimator, "features_", estimator)
    facts: dict[str, Any] = {
        "model": model,
        "learner": type(learned).__name__,
        "rows": dataset.n_rows,
        "split": dataset.name or "all",
        "columns": dataset.n_columns,
        "features": int(estimator.feature_map_.n_features),
        "passes": tally.passes,
        "bytes_read": tally.bytes,
        "cache_hits": tally.cache_hits,
        "seconds": round(seconds, 3),
    }
    table, reasons, summary = facts_table(facts), getattr(estimator, "reasons_", ()), summary_of(estimator)
    chosen: list[RenderableType] = [Text(summary)] if summary else []
    doubts = [reason for reason in reasons if reason.startswith(TOO_GOOD)]
    reasons_shown = reasons if verbose or not summary else doubts
    if reasons_shown:
        chosen.append(facts_table({name: why for name, _, why in (reason.partition(": ") for reason in reasons_shown)}))
    first = [Text(read)] if read else []
    if read and dataset.schema.may_be_counts and machine.task is None:
        line = f"dkl fit {shlex.quote(data)} {shlex.quote(model)} --target {shlex.quote(str(roles.target))} --overwrite"
        first.append(
            Text(
                f"The whole numbers of {roles.target} are taken for classes, as with --task classification. As "
                f"numbers: {line} --task regression; as counts: {line} --loss poisson"
            )
        )
    # after saving the model, so that an interruption of the scoring loses nothing
    test = held_out_beside(store, dataset, held)
    if test is None:
        scores: list[RenderableType] = [Text("No rows are held out, so there is no score: ingest with --split.")]
    else:
        with computing_on(compute):
            limit = compute.memory_limit
            metrics = scores_of(held_out_answers(estimator, test, exposure=exposure, memory_limit=limit))
        facts["held_out"] = {"split": test.name, "rows": test.n_rows} | metric_facts(metrics)
        seen = f"On the {test.n_rows:,} rows of {test.name}, which the fit has not seen:"
        scores = [Text(seen), metric_table(metrics)]
    if read:
        # for files, the importance of columns is shown as well, since the user may not know the rows yet
        facts |= {"store": store, "read": read}
        with computing_on(compute):
            _, facts["importance"], bars = strengths(estimator, dataset if test is None else test, compute, running)
        scores += [Text(""), *bars]
    return Result(facts | {"summary": summary, "reasons": list(reasons)}, Group(*first, table, *chosen, *scores))


def strengths(
    estimator: FittedModel, dataset: Dataset, compute: Compute, running: Running, most: int = 20
) -> tuple[Importance, dict[str, float], list[RenderableType]]:
    """The importance of the columns, the strengths by name in descending order, and a table of the first `most`."""
    from dkl.explain.importance import importance

    found = importance(estimator, dataset, progress=running.progress, memory_limit=compute.memory_limit)
    ordered = [(found.names[g], float(found.strengths[g])) for g in found.order]
    title = f"change of the prediction on {dataset.n_rows:,} rows"
    bars = table_of("column", "strength", title=title)
    bars.add_column("")
    # relative to the first column, which is the strongest
    largest = ordered[0][1] or 1.0
    for name, strength in ordered[:most]:
        bars.add_row(Text(name), f"{strength:.4g}", "█" * round(24 * strength / largest))
    more = [Text(f"and {len(ordered) - most} more columns (dkl explain --most)")] if len(ordered) > most else []
    return found, dict(ordered), [bars, *more]


def held_out_beside(store: str, fitted: Dataset, held: HeldOptions) -> Dataset | None:
    """The split test of the store if the split train was fitted and test has rows; else None."""
    from dkl.data.dataset import open_dataset

    whole = open_dataset(store)
    if fitted.name != "train" or "test" not in whole.splits:
        return None
    test = held.of(whole["test"])
    return test if test.n_rows else None


def metric_table(metrics: Sequence[Metric]) -> Table:
    """A table with each metric, its standard error, and its value for an answer that ignores the columns."""
    table = table_of("metric", "score", "± standard error", "without the columns")
    for metric in metrics:
        baseline = "" if metric.baseline is None else f"{metric.baseline:.4g}"
        name = metric.name.replace("_", " ")
        table.add_row(name, Text(f"{metric.value:.4g}", style="bold"), f"{metric.standard_error:.2g}", baseline)
    return table


def score(
    model: Model,
    data: RowsLikeFit,
    files: LikeFitOptions,
    compute: Compute,
    running: Running,
    *,
    split: Annotated[str | None, typer.Option(help="Split to score (default: test if it exists).")] = None,
    exposure: Exposure = None,
    scoring: Annotated[
        list[str] | None,
        typer.Option(
            help="accuracy, balanced_accuracy, log_loss, roc_auc; rmse, mae, r2; deviance, d2 of counts and sizes. May "
            "be repeated.",
            show_default="all that the model has",
        ),
    ] = None,
) -> Result:
    """Metrics of a model on held-out rows, with standard errors, compared with an answer that ignores the columns.

    For labels accuracy, balanced accuracy, log loss and the area under the ROC curve (the last two need probabilities;
    for several classes the area is the mean of one against the rest); for numbers RMSE, MAE and R^2; for counts and
    sizes also the deviance and D^2. Of files all rows are scored.
    """
    from dkl.model_io import load_model
    from dkl.model_selection.held_out_scores import held_out_answers, metric_facts, scores_of

    estimator = load_model(model)
    rows = store_like_fit(data, model, estimator, files, split, compute=compute, running=running)
    with rows as store, computing_on(compute):
        dataset = chosen_split(store, split, "test")
        answers = held_out_answers(estimator, dataset, exposure=exposure, memory_limit=compute.memory_limit)
    metrics = scores_of(answers, scoring or ())
    facts = {"model": model, "rows": dataset.n_rows, "split": dataset.name or "all"}
    return Result(facts | metric_facts(metrics), Group(facts_table(facts), metric_table(metrics)))


def predict(
    model: Model,
    data: Annotated[
        str, typer.Argument(help="A store, or CSV, Parquet or libsvm files with raw rows.", show_default=False)
    ],
    output: Annotated[str, typer.Argument(help="predictions.parquet, .csv or .zarr.", show_default=False)],
    text: CsvOptions,
    compute: Compute,
    running: Running,
    *,
    split: Annotated[str | None, typer.Option(help="Rows of the store to predict (default: all).")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Also write the probability of each class.")] = False,
    std: Annotated[
        bool, typer.Option("--std", help="Also write the standard deviation of each number, including its noise.")
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="COVERAGE",
            help="Write the ends of intervals, or the classes in prediction sets, with this coverage, such as 0.9.",
        ),
    ] = None,
    interval_group: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The column of the groups for each of which the model promises its coverage.",
        ),
    ] = None,
    exposure: Exposure = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Refuse tables with new columns, categories or missing values, instead of a warning."
        ),
    ] = False,
    ids: Annotated[
        list[str] | None,
        typer.Option("--id", help="Column of the files to copy into the output. May be repeated."),
    ] = None,
    zero_based: ZeroBased = None,
    exact_text: Annotated[
        bool,
        typer.Option(
            "--exact-text",
            help="Write texts into CSV unchanged. Otherwise texts that begin with = + - @ and are not numbers get an "
            "apostrophe in front, and characters that control a terminal or change the direction of writing are "
            "escaped as \\x1b, so that spreadsheets and terminals do not act on them.",
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing predictions.")] = False,
) -> Result:
    """Predict for the rows of a store or of files, out of core, and write Parquet, CSV or a zarr group.

    Each prediction has the row_id of its row, which is its number in the files (ingest shuffles), and the columns of
    --id.
    """
    from dkl.cli.predictions import Answers, check_predictions, open_writer, predict_files, predict_store
    from dkl.data.differences import Differences
    from dkl.data.exposure import exposure_of_fit
    from dkl.data.store.overwriting import means_store
    from dkl.model_io import load_model

    check_predictions(output, overwrite=overwrite, inputs=[model, data])
    started = time.perf_counter()
    estimator = load_model(model)
    exposure_column = exposure_of_fit(estimator) if exposure is None else exposure or None
    answers = Answers(estimator, proba, std, interval, interval_group, exposure_column)
    answers.check(model)
    carried = tuple(dict.fromkeys(ids or ()))
    if set(carried) & {"row_id", "prediction"}:
        raise typer.BadParameter("--id names a column that predictions have of their own: row_id or prediction")
    stored = means_store(data)
    if stored and carried:
        raise typer.BadParameter(f"a store keeps row_id alone of what it was read from: --id {carried[0]} needs files")
    # options without an effect are errors, as users would expect one
    reading_options = [*text.given, *([] if zero_based is None else [base_option(zero_based)])]
    if stored and reading_options:
        raise typer.BadParameter(f"{reading_options[0]} says how files are read, and {data!r} is a store")
    if not stored and split is not None:
        raise typer.BadParameter(f"--split {split} is of a store; all rows of files are predicted, {data!r} here")
    with computing_on(compute):
        if stored:
            parts = predict_store(answers, chosen_split(data, split, ""), compute)
        else:
            differences = Differences(strict, "--strict")
            format = text.csv_format()
            parts = predict_files(
                answers, data, zero_based=zero_based, differences=differences, ids=carried, format=format
            )
        # each part is written before the next is computed, so that memory does not grow with the number of rows
        try:
            with open_writer(output, overwrite=overwrite, inputs=[model, data], exact_text=exact_text) as writer:
                for part in parts:
                    writer.write(answers.rounded_for_text(part) if output.endswith(".csv") else part)
        except ValueError as error:
            if exposure is None and exposure_column is not None and repr(exposure_column) in str(error):
                error.add_note(
                    f"the fit counted targets over {exposure_column!r}, the exposure of each row: give the column with "
                    "that of these rows by --exposure COLUMN, or predict for an exposure of 1 by --exposure ''"
                )
            raise
    facts = {"model": model, "data": data, "output": output, "rows": writer.rows}
    return Result(facts | {"seconds": round(time.perf_counter() - started, 3)})

"""The command `compare`: compares learners on one dataset, with a table, a picture and advice."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, said_if_interrupted, stderr, table_of
from dkl.cli.data_commands import HeldOptions
from dkl.cli.model_options import FamilyName, FeatureOptions, family_from
from dkl.cli.output_checks import prepare_folder
from dkl.data.store.outputs import written_whole
from dkl.data.store.overwriting import means_store

if TYPE_CHECKING:
    from dkl.figure import Display
    from dkl.model_selection.comparison import Comparison


@dataclass(frozen=True)
class EntryOptions:
    """Options that choose the compared learners."""

    learner: Annotated[
        list[str] | None,
        typer.Option(help="Learner to compare, as in dkl fit (default: auto and all). May be repeated."),
    ] = None
    features: Annotated[
        list[int] | None,
        typer.Option(help="Columns of the mapped rows. May be repeated.", show_default="50, 200, 800"),
    ] = None
    family: Annotated[FamilyName, typer.Option(help="The kernel whose features are the candidates.")] = "gaussian"
    sigma: Annotated[str, typer.Option(help="Bandwidth: a number, or 'median'.")] = "median"
    scaling: Annotated[
        Literal["standard", "minmax", "unit", "quantile", "counts", "none"],
        typer.Option(
            help="Scaling of the columns before anything else; quantile for heavy tails, counts for counts of words."
        ),
    ] = "standard"

    rivals: Annotated[
        bool,
        typer.Option(help="Also compare scikit-learn's linear model, boosted trees, and for up to 10,000 rows an SVM."),
    ] = True

    def choices(self) -> dict[str, Any]:
        """The arguments of `dkl.compare`."""
        # without options that were not given, so that the defaults of `dkl.compare` apply
        sizes = {} if self.features is None else {"n_features": self.features}
        family = family_from(FeatureOptions(family=self.family, sigma=self.sigma))
        scaling = None if self.scaling == "none" else self.scaling
        return {"learners": self.learner, "family": family, "scaling": scaling, "rivals": self.rivals, **sizes}


def compare(
    data: Annotated[
        str, typer.Argument(help="A store, or CSV, Parquet, libsvm or npz files (a glob).", show_default=False)
    ],
    entries: EntryOptions,
    held: HeldOptions,
    compute: Compute,
    running: Running,
    *,
    target: Annotated[str | None, typer.Option(help="Column of the labels or numbers in files.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the picture, the table and the rows of files.")] = Path(
        "dkl-compare"
    ),
    seed: Annotated[int, typer.Option(help="Seed of all random numbers.")] = 0,
    checkpoint: Annotated[
        str | None, typer.Option(help="Folder or URL from which an interrupted comparison resumes.")
    ] = None,
) -> Result:
    """Fit every learner at several sizes, and models of scikit-learn, score all on other rows, and recommend one.

    Fits the split train and scores test; rows without splits are split 3 to 1. Fits run one after the other, so that
    their times are comparable. Prints a table, and writes scores.csv and a picture into the output folder.
    """
    from dkl.data.together.messages import kind_of_split
    from dkl.demo import own_dataset
    from dkl.model_selection.comparison import compare as compare_learners

    started = time.perf_counter()
    # files are ingested into the folder; a store is used in place
    rows = [] if means_store(data) else ["rows.zarr"]
    # before the work, so that a long comparison does not end with a file that may not be replaced
    prepare_folder(output, [*rows, "scores.csv", "dkl-compare.png"], inputs=[data, checkpoint])
    dataset = own_dataset(data, target, output / "rows.zarr", **vars(held))
    goes_on = "with --checkpoint FOLDER a comparison goes on where it was broken off"
    if checkpoint is not None:
        goes_on = "run again with the same checkpoint, the comparison goes on after the last finished fit"
    with said_if_interrupted(f"no scores were written; {goes_on}"), computing_on(compute):
        comparison = compare_learners(
            dataset["train"],
            test=dataset["test"],
            **entries.choices(),
            device=compute.device,
            memory_limit=compute.memory_limit,
            random_state=seed,
            checkpoint=checkpoint,
            progress=running.progress,
        )
    table = output / "scores.csv"
    with written_whole(table) as hidden:
        comparison.table.to_csv(hidden, index=False)
    picture = saved_picture(comparison.display(), output / "dkl-compare.png")
    drawn = dataset.schema.held_by is not None or "demo" in dataset.split_sets
    facts = {
        "dataset": comparison.rows,
        "held_out": f"the split test{f': {kind_of_split(dataset)}' if drawn else ''}",
        "measure": comparison.measure,
        "scores": score_facts(comparison),
        "advice": comparison.advice,
        "table": str(table),
        "picture": picture,
        "seconds": round(time.perf_counter() - started, 1),
    }
    # failed fits do not stop a comparison, and are listed below the table
    held_out = Text(f"Held out: {facts['held_out']}.")
    errors = [Text(error, style="red") for error in comparison.errors]
    lines = [Text(comparison.advice), held_out, *errors, *written(facts)]
    return Result(
        facts, Group(scores_table(comparison, f"{comparison.measure} by number of features, {comparison.rows}"), *lines)
    )


def score_facts(comparison: Comparison) -> list[dict[str, Any]]:
    """The results as JSON values: null for an estimator without a size, or a fit without a score."""
    return [
        {name: None if value != value else value for name, value in asdict(result).items()}
        for result in comparison.results
    ]


def saved_picture(display: Display, path: Path) -> str | None:
    """Write the picture and return its path; None, with a message, without matplotlib."""
    try:
        with written_whole(path) as hidden:
            display.save(hidden)
        return str(path)
    # matplotlib is optional
    except ImportError as error:
        stderr().print(Text.assemble(("No picture: ", "yellow"), str(error)))
        return None


def written(facts: dict[str, Any]) -> list[Text]:
    """Lines with the paths of the written files."""
    return [Text(f"{name}: {facts[name]}") for name in ("table", "picture") if facts.get(name)]


def scores_table(comparison: Comparison, title: str) -> Table:
    """A table with a row for each learner and a column for each size; the best score of each column is bold."""
    head, *rows = comparison.cells()
    table = table_of(*head, title=title, is_framed=True)
    table.title_style = "bold"
    # cells are texts, empty for failed fits; the first column is the name and the last one the seconds
    best = [max(cells, key=lambda cell: float(cell or "-inf")) for cells in list(zip(*rows, strict=True))[1:-1]]
    for learner, *scores, seconds in rows:
        bold = [Text(cell, style="bold" if cell == top else "") for cell, top in zip(scores, best, strict=True)]
        table.add_row(learner, *bold, seconds)
    return table

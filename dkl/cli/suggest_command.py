"""The command `suggest`: what `dkl fit` chooses on these rows and why, before anything is fitted to all of them."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import Annotated, Literal

import typer
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, command
from dkl.cli.data_commands import CsvOptions, HeldOptions, RoleOptions
from dkl.cli.given_files import Rows, store_of
from dkl.cli.model_commands import chosen_split

# Where the command that is printed writes the model.
_MODEL = "model.zarr"


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "suggest", epilog="Example: [bold]dkl suggest rows.csv --target label[/bold]")(suggest)


def suggest(
    data: Rows,
    roles: RoleOptions,
    text: CsvOptions,
    held: HeldOptions,
    compute: Compute,
    running: Running,
    *,
    split: Annotated[str | None, typer.Option(help="Rows to judge on (default: train where it is there).")] = None,
    effort: Annotated[
        Literal["fast", "balanced", "best"], typer.Option(help="How much work the choice may take.")
    ] = "balanced",
    seed: Annotated[int, typer.Option(help="Of the race, and of the model.")] = 0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="All that was tried, and why.")] = False,
) -> Result:
    """Say what `dkl fit` without options chooses on these rows: what it tries, the scores, and the parameters.

    Kinds of features race on held-out rows. The last line is the command that holds the same race and fits the winner;
    with --verbose the scores and the parameters come before it.
    Files are read into the store model.rows.zarr first, which that command uses again while they are unchanged.
    """
    from dkl.suggestions import suggest as suggest_for

    store, read = store_of(data, _MODEL, roles, text, held, compute=compute, running=running, seed=seed)
    dataset = held.of(chosen_split(store, split, "train"))
    with computing_on(compute):
        suggestion = suggest_for(
            dataset, effort=effort, random_state=seed, progress=running.progress, memory_limit=compute.memory_limit
        )
    facts = {
        "rows": suggestion.rows,
        "tried": [asdict(kind) for kind in suggestion.tried],
        "summary": suggestion.summary,
        "reasons": list(suggestion.reasons),
        "estimator": repr(suggestion.estimator),
    }
    # Without a target there is nothing to fit, so no command can follow.
    if suggestion.task is None:
        return Result(facts, Text(repr(suggestion)))
    # The line is one that a shell takes as it stands: names with spaces are quoted.
    by = [text for name, value in vars(held).items() if value for text in (f"--{name.replace('_', '-')}", value)]
    by += [*(roles.given if read else ()), *(text.given if read else ())]
    where = [data, _MODEL, *([] if split is None else ["--split", split]), *by]
    line = shlex.join(["dkl", "fit", *where, "--effort", effort, "--seed", str(seed)])
    said = repr(suggestion) if verbose else f"For {suggestion.rows}:\n{suggestion.summary}"
    return Result(
        facts | {"command": line}, Text.assemble(f"{read}\n\n" if read else "", f"{said}\n\n", (line, "bold"))
    )

"""The command `drift`: whether the rows of two stores are of one law, and which columns differ."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, command
from dkl.cli.model_commands import chosen_split


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "drift", epilog="Example: [bold]dkl drift last-year.zarr this-year.zarr[/bold]")(drift)


def drift(
    a: Annotated[str, typer.Argument(help="Path or URL of a store.", show_default=False)],
    b: Annotated[str, typer.Argument(help="Path or URL of another store, or of the same one.", show_default=False)],
    compute: Compute,
    running: Running,
    *,
    split_a: Annotated[str, typer.Option(help="A split of the first store.", show_default="all rows")] = "",
    split_b: Annotated[str, typer.Option(help="A split of the second store.", show_default="all rows")] = "",
    features: Annotated[int, typer.Option(min=2, help="Columns of the feature map that the rows are seen by.")] = 500,
    level: Annotated[float, typer.Option(help="The share of false alarms among samples that are alike.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Of the frequencies and of the sampled rows.")] = 0,
) -> Result:
    """Say whether the rows of two stores are alike, and which columns differ.

    Each store is read once, and a few of its blocks beforehand. Targets are not looked at. What differs is told by its
    p value and by its size: with many rows, differences that matter to nobody are found, too.
    """
    from dkl.uncertainty.drifting import drift as drift_of

    samples = chosen_split(a, split_a, ""), chosen_split(b, split_b, "")
    with computing_on(compute):
        found = drift_of(
            *samples,
            n_features=features,
            alpha=level,
            random_state=seed,
            device=compute.device,
            progress=running.progress,
            memory_limit=compute.memory_limit,
        )
    return Result(found.facts, Text(repr(found)))

"""The command `report`: one page on a model, printed, or written as text, HTML or JSON."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, command
from dkl.cli.model_commands import Model
from dkl.cli.output_checks import check_before


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    example = "dkl report model.zarr rows.zarr --output report.html"
    command(app, "report", epilog=f"Example: [bold]{example}[/bold]")(report)


def report(
    model: Model,
    compute: Compute,
    running: Running,
    *,
    data: Annotated[
        str | None, typer.Argument(help="A store whose splits are scored; without it no row is read.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Write the page here: .html, .json or .txt.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a page that is there.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="All reasons of what was chosen.")] = False,
) -> Result:
    """A page on a model to show: scores with intervals and a baseline, errors, importance, what was chosen and why.

    With --output report.html one file with its pictures, which needs no network; rows, settings, memory, bounds and
    versions are folded below. The hash of the fit is equal for two people who fitted the same rows with the same
    settings to the same bits.
    """
    from dkl.data.dataset import open_dataset
    from dkl.reporting import check_format, is_page
    from dkl.reporting import report as report_on

    if output is not None:
        # A page that cannot be written is refused before the rows are scored.
        check_format(output)
        check_before(output, "report", overwrite=overwrite, inputs=[model, data], is_own=is_page)
    with computing_on(compute):
        # Scores are a pass over the rows, so they are computed where the options say.
        page = report_on(model, None if data is None else open_dataset(data))
    if output is not None:
        page.write(output)
    return Result(page.facts, Text(page.text(verbose=verbose)))

"""The command `dkl`: all commands, put together."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from dkl.cli import (
    answer_commands,
    bench_command,
    compare_command,
    data_commands,
    demo_command,
    model_commands,
    sums_commands,
    tune_command,
    warmup_command,
)
from dkl.process import leave_quickly
from dkl.version import __version__

# Smallest width of a terminal, in columns, that is believed.
_NARROWEST = 20

app = typer.Typer(
    name="dkl",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="A first run: [bold]dkl demo[/bold]. Each command explains itself: [bold]dkl fit --help[/bold].",
)


def _print_version(wanted: bool) -> None:
    """Print the version and exit; typer calls it before it requires a command."""
    if wanted:
        typer.echo(f"dkl {__version__}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Learn which Fourier features matter, from rows that do not fit in memory, on any Dask cluster.

    The way of the data: [bold]ingest[/bold] files into a store, [bold]plan[/bold] what a fit costs, [bold]fit[/bold] a
    model, [bold]score[/bold] it on held-out rows, [bold]predict[/bold] for new ones.

    Exit codes: 0 all went well, 1 the work failed (one message says why), 2 the command was not
    understood, 130 interrupted.
    """


# in the order of the help
data_commands.register(app)
model_commands.register(app)
answer_commands.register(app)
tune_command.register(app)
sums_commands.register(app)
demo_command.register(app)
compare_command.register(app)
bench_command.register(app)
warmup_command.register(app)


def main() -> None:
    """Run the command line."""
    leave_quickly()
    columns = os.environ.get("COLUMNS", str(_NARROWEST))
    if not columns.isdigit() or int(columns) < _NARROWEST:
        # some programs set COLUMNS to 0 for the programs that they start, and every line would break after a letter
        del os.environ["COLUMNS"]
    app(prog_name="dkl")

"""The command `dkl`: all commands, put together."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from dkl.cli import sums_commands
from dkl.cli.answer_commands import drift, explain, export, report, suggest
from dkl.cli.bench_command import bench
from dkl.cli.command import add_command
from dkl.cli.compare_command import compare
from dkl.cli.data_commands import info, ingest, verify
from dkl.cli.demo_command import demo
from dkl.cli.model_commands import fit, plan, predict, score
from dkl.cli.tune_command import tune
from dkl.cli.warmup_command import warmup
from dkl.process import leave_quickly
from dkl.version import __version__

# Smallest width of a terminal, in columns, that is believed.
_NARROWEST = 20

# The help of the program and of a group of commands.
_HELP: dict[str, Any] = {
    "no_args_is_help": True,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
app = typer.Typer(
    **_HELP,
    name="dkl",
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="A first run: [bold]dkl demo[/bold]. Each command explains itself: [bold]dkl fit --help[/bold].",
)
sums = typer.Typer(
    **_HELP,
    help="Fit a model to the sums of several sites, which do not share their rows.",
    epilog="First somebody agrees, then every site exports, then somebody fits. Example: [bold]dkl sums agree "
    "--help[/bold].",
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
add_command(app, ingest, "dkl ingest 'part-*.csv' rows.zarr --target label --split train=0.8,test=0.2")
add_command(app, info, "dkl info rows.zarr")
add_command(app, verify, "dkl verify s3://bucket/rows.zarr")
add_command(app, plan, "dkl plan rows.zarr --memory-limit '1 GiB'")
add_command(app, fit, "dkl fit rows.csv model.zarr --target label")
add_command(app, score, "dkl score model.zarr rows.zarr --scoring accuracy")
add_command(app, predict, "dkl predict model.zarr new.csv predictions.parquet --proba")
add_command(app, suggest, "dkl suggest rows.csv --target label")
add_command(app, explain, "dkl explain model.zarr rows.zarr --output pictures")
add_command(app, drift, "dkl drift last-year.zarr this-year.zarr")
add_command(app, report, "dkl report model.zarr rows.zarr --output report.html")
add_command(app, export, "dkl export model.zarr model.onnx")
add_command(app, tune, "dkl tune rows.zarr model.zarr --space alpha=1e-7:1e-2:log --trials 30")
add_command(app, demo, "dkl demo", "dkl demo --data rows.csv --target label")
add_command(app, compare, "dkl compare rows.csv --target label --features 100 --features 400")
add_command(app, bench, "dkl bench", "dkl bench --memory --gigabytes 2 --gigabytes 8")
add_command(app, warmup, "NUMBA_CACHE_DIR=/opt/cache dkl warmup")
app.add_typer(sums, name="sums")
add_command(sums, sums_commands.agree, "dkl sums agree public.zarr agreement.json --site north=8 --site south=5")
add_command(sums, sums_commands.export, "dkl sums export rows.zarr north.sums --agreement agreement.json --site north")
add_command(sums, sums_commands.fit, "dkl sums fit agreement.json model.zarr north.sums south.sums")


def main() -> None:
    """Run the command line."""
    leave_quickly()
    columns = os.environ.get("COLUMNS", str(_NARROWEST))
    if not columns.isdigit() or int(columns) < _NARROWEST:
        # some programs set COLUMNS to 0 for the programs that they start, and every line would break after a letter
        del os.environ["COLUMNS"]
    app(prog_name="dkl")

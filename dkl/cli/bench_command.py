"""The command bench: measures the speed ratios that dkl promises on this machine, or its peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.text import Text

from dkl.cli.command import Result, Running, table_of

# Sizes of a trial run of a few seconds, whose ratios are meaningless.
QUICK_KERNELS = {"n_rows": 512, "n_frequencies": 128, "n_structured": 1_024, "repeats": 1}
QUICK_PATHS = {"n_rows": 2_000, "n_features": 32, "repeats": 1}
QUICK_PASSES = {"n_rows": 2_048, "n_columns": 32, "n_frequencies": 64, "n_tiny": 1_000, "repeats": 1}


def bench(
    running: Running,
    *,
    memory: Annotated[bool, typer.Option("--memory", help="Measure peak memory instead of speed.")] = False,
    gigabytes: Annotated[
        list[float] | None, typer.Option(min=0.01, help="Sizes for --memory (default 2 and 8). May be repeated.")
    ] = None,
    directory: Annotated[str | None, typer.Option(help="Folder for the datasets of --memory.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, for a trial of a few seconds.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes for --memory; 0 is threads.")] = 2,
) -> Result:
    """Measure the promises of dkl: speed as ratios of alternating runs in one process, or peak memory.

    Speed, as ratios of seconds: block sums to the matrix product or the cosines that they need; a pass over a store to
    the same sums of rows in memory; and, while another process keeps a core busy, predictions with all BLAS threads to
    predictions with one. Memory: the peak bytes of each process that learns or fits, beyond its imports, for datasets
    of several sizes.
    """
    if gigabytes and not memory:
        raise typer.BadParameter("--gigabytes belongs to --memory")
    if memory:
        return _memory(tuple(gigabytes or (2.0, 8.0)), directory, workers)
    # imported here, so that `dkl --help` does not import what is measured
    from dkl.bench.busy import busy_ratios
    from dkl.bench.kernels import kernel_ratios
    from dkl.bench.passes import pass_ratios

    of_kernels = QUICK_KERNELS if quick else {}
    of_passes = QUICK_PASSES if quick else {}
    of_paths = QUICK_PATHS if quick else {}
    measures: list[Any] = [*kernel_ratios(**of_kernels), *pass_ratios(**of_passes), *busy_ratios(**of_paths)]
    heads = ("what", "measured", "promised")
    table = table_of(*heads, title="measured side by side on this machine", is_framed=True)
    for measure in measures:
        # red if the promise was not kept, usually on a busy machine
        style = "" if measure.kept else "red"
        table.add_row(measure.name, Text(f"{measure.value:.2f}", style=style), f"{measure.promised:g}")
    kept = sum(measure.kept for measure in measures)
    trial = "Sizes too small to hold the promises to: a trial run."
    note = Text(trial if quick else f"{kept} of {len(measures)} kept")
    facts = {"quick": quick, "measures": [asdict(measure) | {"kept": measure.kept} for measure in measures]}
    return Result(facts, Group(table, note))


def _memory(sizes: Sequence[float], directory: str | None, n_workers: int) -> Result:
    """Peak memory of ingest and fit for each size of X, in gigabytes."""
    from dkl.bench.peak_memory import ALLOWED_BYTES, measure_memory

    measured = list(measure_memory(sizes, directory=directory, n_workers=n_workers))
    heads = ("X", "rows", *measured[0].peaks, "ingest s", "fit s")
    title = f"peak above the imports, MB (at most {ALLOWED_BYTES / 1e6:,.0f})"
    table = table_of(*heads, title=title, is_framed=True)
    for size in measured:
        peaks = (f"{peak / 1e6:,.0f}" for peak in size.peaks.values())
        seconds = (f"{size.seconds[job]:.1f}" for job in ("ingest", "fit"))
        table.add_row(f"{size.gigabytes:g} GB", f"{size.rows:,}", *peaks, *seconds)
    facts = {
        "allowed_bytes": ALLOWED_BYTES,
        # the promise is about fits; the memory of ingest is only shown
        "kept": all(size.fit_peak < ALLOWED_BYTES for size in measured),
        "sizes": [asdict(size) for size in measured],
    }
    return Result(facts, table)

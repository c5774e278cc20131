"""The command bench: the ratios that dkl promises, measured on this machine, and its peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from dkl.cli.command import Result, Running, command

QUICK_KERNELS = {"n_rows": 512, "n_frequencies": 128, "n_structured": 1_024, "repeats": 1}
QUICK_PATHS = {"n_rows": 2_000, "n_features": 32, "repeats": 1}
QUICK_PASSES = {"n_rows": 2_048, "n_columns": 32, "n_frequencies": 64, "n_tiny": 1_000, "repeats": 1}


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(
        app,
        "bench",
        epilog="Examples: [bold]dkl bench[/bold], [bold]dkl bench --memory --gigabytes 2 --gigabytes 8[/bold]",
    )(bench)


def bench(
    running: Running,
    *,
    memory: Annotated[bool, typer.Option("--memory", help="Measure peak memory instead of speed.")] = False,
    gigabytes: Annotated[
        list[float] | None, typer.Option(min=0.01, help="Sizes for --memory (default 2 and 8). May be repeated.")
    ] = None,
    directory: Annotated[str | None, typer.Option(help="Where --memory writes its datasets.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: seconds, for a trial.")] = False,
    workers: Annotated[int, typer.Option(min=0, help="Worker processes for --memory; 0 is threads.")] = 2,
) -> Result:
    """Measure what dkl promises: speed as ratios taken side by side in one process, or peak memory.

    Speed: block sums against the bare matrix product and against NumPy, a pass over a store against the same sums in
    memory, and predictions beside a busy process against one BLAS thread there. Memory: learning and fitting on
    datasets of several sizes, each process above its imports.
    """
    if gigabytes and not memory:
        raise typer.BadParameter("--gigabytes belongs to --memory")
    return _memory(tuple(gigabytes or (2.0, 8.0)), directory, workers) if memory else _speed(quick=quick)


def _memory(sizes: Sequence[float], directory: str | None, n_workers: int) -> Result:
    from dkl.bench.peak_memory import ALLOWED_BYTES, measure_memory

    found = list(measure_memory(sizes, directory=directory, n_workers=n_workers))
    table = Table(title=f"peak above the imports, MB (at most {ALLOWED_BYTES / 1e6:,.0f})", title_justify="left")
    for head in ("X", "rows", *found[0].peaks, "ingest s", "fit s"):
        table.add_column(head, justify="right")
    for one in found:
        peaks = (f"{peak / 1e6:,.0f}" for peak in one.peaks.values())
        seconds = (f"{one.seconds[job]:.1f}" for job in ("ingest", "fit"))
        table.add_row(f"{one.gigabytes:g} GB", f"{one.rows:,}", *peaks, *seconds)
    facts = {
        "allowed_bytes": ALLOWED_BYTES,
        "kept": all(one.fit_peak < ALLOWED_BYTES for one in found),
        "sizes": [asdict(one) for one in found],
    }
    return Result(facts, table)


def _speed(*, quick: bool) -> Result:
    from dkl.bench.busy import busy_ratios
    from dkl.bench.kernels import kernel_ratios
    from dkl.bench.passes import pass_ratios

    of_kernels = QUICK_KERNELS if quick else {}
    of_passes = QUICK_PASSES if quick else {}
    of_paths = QUICK_PATHS if quick else {}
    found: list[Any] = [*kernel_ratios(**of_kernels), *pass_ratios(**of_passes), *busy_ratios(**of_paths)]
    table = Table(title="measured side by side on this machine", title_justify="left")
    for head in ("what", "measured", "promised", "bare product"):
        table.add_column(head, justify="left" if head == "what" else "right")
    for one in found:
        style = "" if one.kept else "red"
        ceiling = getattr(one, "ceiling", None)
        table.add_row(
            one.name,
            Text(f"{one.value:.2f}", style=style),
            f"{one.promised:g}",
            "" if ceiling is None else f"{ceiling:.2f}",
        )
    kept = sum(one.kept for one in found)
    note = (
        Text("Sizes too small to hold the promises to: a trial run.") if quick else Text(f"{kept} of {len(found)} kept")
    )
    return Result({"quick": quick, "measures": [asdict(one) | {"kept": one.kept} for one in found]}, Group(table, note))

"""The command bench: the ratios that dkl promises, measured on this machine, and its peak memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from dkl.cli.command import Result, Running, command


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
    workers: Annotated[int, typer.Option(min=0, help="Worker processes for --memory; 0 is threads.")] = 2,
) -> Result:
    """Measure what dkl promises: speed as ratios taken side by side in one process, or peak memory.

    Speed: block sums against the bare matrix product and against NumPy, and a pass over a store against the same sums
    in memory. Memory: learning and fitting on datasets of several sizes, each process above its imports.
    """
    if gigabytes and not memory:
        raise typer.BadParameter("--gigabytes belongs to --memory")
    return _memory(tuple(gigabytes or (2.0, 8.0)), directory, workers) if memory else _speed()


def _memory(sizes: Sequence[float], directory: str | None, n_workers: int) -> Result:
    from dkl.bench.memory import ALLOWED_BYTES, measure_memory

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


def _speed() -> Result:
    from dkl.bench.kernels import kernel_ratios
    from dkl.bench.passes import pass_ratios

    found: list[Any] = [*kernel_ratios(), *pass_ratios()]
    table = Table(title="ratios, measured side by side", title_justify="left")
    for head in ("what", "measured", "promised"):
        table.add_column(head, justify="left" if head == "what" else "right")
    for ratio in found:
        style = "" if ratio.kept else "red"
        table.add_row(ratio.name, Text(f"{ratio.value:.2f}", style=style), f"{ratio.promised:g}")
    return Result({"ratios": [asdict(ratio) | {"kept": ratio.kept} for ratio in found]}, table)

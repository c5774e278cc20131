"""Draw the tables of the pages of measurements, for the gallery: nothing is measured again.

    python examples/gallery_pictures.py --only limits,counts

Each picture reads its numbers from the table of its page, so that it says what the page says.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from displays import DOTS, pyplot, shrink

from dkl.figure import CLASS_COLOURS

HERE = Path(__file__).parent
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e\d+)?")


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page, each a list of rows of cells, the header first, without the line of dashes."""
    text = (HERE / page).read_text(encoding="utf-8")
    found = [block.splitlines() for block in re.findall(r"(?:^\|.*\n)+", text, re.M)]
    return [
        [[cell.strip(" *`") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in (t[0], *t[2:])] for t in found
    ]


def number(cell: str, position: int) -> float:
    """The number of a cell at a position; not a number where there is none."""
    found = NUMBER.findall(cell)
    return float(found[position].replace(",", "")) if position < len(found) else np.nan


def table_of(page: str, *names: str) -> list[list[str]]:
    """The first table of a page that has columns of these names."""
    return next(table for table in tables(page) if set(names) <= set(table[0]))


def columns(page: str, has: str, position: int, names: Sequence[str] | None) -> tuple[list[str], dict[str, np.ndarray]]:
    """The first cells of the rows of a table, and the numbers of its columns by name, of those that are asked for."""
    header, *rows = table_of(page, has, *names or ())
    kept = {name: place for place, name in enumerate(header) if place and (names is None or name in names)}
    values = {name: np.array([number(row[place], position) for row in rows]) for name, place in kept.items()}
    return [row[0] for row in rows], values


def bars(
    page: str,
    label: str,
    *,
    has: str = "rows",
    position: int = 0,
    names: Sequence[str] | None = None,
    relative: str = "",
    line: float | None = None,
    begin: float = 0.0,
) -> None:
    """A group of bars for each row of a table, a bar for each of its columns; `relative` divides by one of them."""
    rows, found = columns(page, has, position, names)
    if relative:
        whole = np.where(found[relative] > 0.0, found[relative], np.nan)
        found = {name: values / whole for name, values in found.items()}
    there = np.isfinite(list(found.values())).any(axis=0)
    places, height = np.arange(np.count_nonzero(there)), 0.8 / len(found)
    _, axes = pyplot().subplots(figsize=(6.4, 0.9 + 0.16 * len(found) * len(places) + 0.1 * len(places)))
    for number_of, (name, values) in enumerate(found.items()):
        at = places + (number_of - (len(found) - 1) / 2.0) * height
        axes.barh(
            at, values[there] - begin, height, begin, color=CLASS_COLOURS[number_of % len(CLASS_COLOURS)], label=name
        )
    axes.set_yticks(places, [row for row, is_there in zip(rows, there, strict=True) if is_there])
    axes.invert_yaxis()
    axes.set_xlabel(label + (f" (the axis begins at {begin:g})" if begin else ""))
    if line is not None:
        axes.axvline(line, color="0.3", linestyle="--", linewidth=1.0)
    if len(found) > 1:
        axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def lines(
    page: str,
    label: str,
    *,
    has: str = "rows",
    position: int = 0,
    names: Sequence[str] | None = None,
    is_log: bool = True,
) -> None:
    """A line for each column of a table, against the number of rows that each of its rows begins with."""
    rows, found = columns(page, has, position, names)
    sizes = np.array([number(row, 0) for row in rows])
    _, axes = pyplot().subplots(figsize=(5.4, 3.2))
    for (name, values), colour in zip(found.items(), CLASS_COLOURS, strict=False):
        there = np.isfinite(values)
        axes.plot(sizes[there], values[there], "o-", color=colour, markersize=4.0, label=name)
    axes.set(xscale="log", yscale="log" if is_log else "linear", xlabel="rows", ylabel=label)
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def gains(page: str, arm: str) -> None:
    """How far an arm is ahead of LightGBM's 100 trees on each set, in standard errors, in their order."""
    header, *rows = table_of(page, "set", arm)
    found = (re.search(r"\(([+-][\d.]+) ± ([\d.]+)\)", row[header.index(arm)]) for row in rows)
    ahead = sorted(float(one[1]) / max(float(one[2]), 1e-4) for one in found if one is not None)
    _, axes = pyplot().subplots(figsize=(5.4, 2.8))
    colours = [CLASS_COLOURS[0] if gain > 0 else CLASS_COLOURS[1] for gain in ahead]
    axes.bar(np.arange(len(ahead)), np.clip(ahead, -12, 12), color=colours, width=0.9)
    axes.set(xlabel=f"{len(ahead)} sets", ylabel="ahead of LightGBM,\nstandard errors (at most 12)", xticks=[])


def forecasts() -> None:
    """Processor seconds of fits from a store, beside those that the plan forecast."""
    header, *rows = table_of("benchmarks/scale.md", "forecast")
    _, axes = pyplot().subplots(figsize=(5.4, 3.2))
    for kind, colour in zip(dict.fromkeys(row[0] for row in rows), CLASS_COLOURS, strict=False):
        of_kind = [row for row in rows if row[0] == kind]
        sizes = [number(row[header.index("rows")], 0) for row in of_kind]
        for name, style in (("processor seconds", "o-"), ("forecast", "s:")):
            values = [number(row[header.index(name)], 0) for row in of_kind]
            axes.plot(sizes, values, style, color=colour, markersize=4.0, label=f"{kind}: {name}")
    axes.set(xscale="log", yscale="log", xlabel="rows", ylabel="seconds")
    axes.legend(frameon=False, fontsize="small")


def by_columns() -> None:
    """Test accuracy by the number of columns, a panel for each set of table 1."""
    header, *rows = table_of("papers/table_1.md", "features")
    sizes = [number(name, 0) for name in header[2:]]
    sets = list(dict.fromkeys(row[0] for row in rows))
    _, axes = pyplot().subplots(1, len(sets), figsize=(2.6 * len(sets), 2.6))
    for panel, name in zip(axes, sets, strict=True):
        of_set = [row for row in rows if row[0] == name]
        for row, colour in zip(of_set, CLASS_COLOURS, strict=False):
            panel.plot(sizes, [number(cell, 0) for cell in row[2:]], "o-", color=colour, markersize=4.0, label=row[1])
        panel.set(xscale="log", title=name, xlabel="columns")
    axes[0].set_ylabel("test accuracy, percent")
    axes[-1].legend(frameon=False, fontsize="small")


def draws() -> None:
    """The error of the drawn feature maps on the circle, as `spectral_map.py` prints it, which the gallery shows."""
    text = (HERE / "gallery.md").read_text(encoding="utf-8")
    block = re.search(r"^draws +(.*) by theory\n((?:.+\n)+?)```", text, re.M)
    if block is None:
        raise ValueError("gallery.md shows no output of spectral_map.py any more")
    sizes = [float(size) for size in block[1].split()]
    _, axes = pyplot().subplots(figsize=(5.4, 3.0))
    for line, colour in zip(block[2].splitlines(), CLASS_COLOURS, strict=False):
        name, values = re.split(r"\s{2,}", line.strip(), maxsplit=1)
        axes.plot(
            sizes, [float(v) for v in values.split()[: len(sizes)]], "o-", color=colour, markersize=4.0, label=name
        )
    axes.set(xscale="log", yscale="log", xlabel="features drawn", ylabel="error, percent")
    axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize="small")


def workers() -> None:
    """Memory of workers in fits of rows beyond memory: held before, promised, seen, and where Dask would act."""
    header, *rows = table_of("../deploy/SCALING.md", "decoded")
    names = ("held", "seen", "promised", "line")
    _, axes = pyplot().subplots(figsize=(6.4, 2.6))
    for place, name in enumerate(names):
        values = [number(row[header.index(name)], 0) for row in rows]
        axes.barh(np.arange(len(rows)) + 0.2 * (place - 1.5), values, 0.2, color=CLASS_COLOURS[place], label=name)
    labels = [f"{row[0]} rows x {row[1]}\non {row[3]} x {row[4]}" for row in rows]
    axes.set_yticks(np.arange(len(rows)), labels)
    axes.invert_yaxis()
    axes.set_xlabel("MiB of a worker (at the line Dask acts)")
    axes.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


README = "benchmarks/README.md"


def by_rows() -> None:
    """Processor seconds, area under the curve and memory against rows, of step-like rows that `dkl` and trees learn."""
    page, law = "benchmarks/beyond_memory.md", "step-like"
    measured: dict[str, list[tuple[float, ...]]] = {"dkl": [], "LightGBM, 100 trees": [], "LightGBM, 500 trees": []}
    for header, *rows in tables(page):
        if law not in header:
            continue
        n_rows, place = number(header[0], 0), header.index(law)
        for name, found in measured.items():
            # a fit within a limit stands for the one without where that was not run
            arms = [
                row for row in rows if row[0] == name or row[0].startswith((f"{name} of", f"{name}, `memory_limit"))
            ]
            cells = [row[place] for row in arms if row[place]]
            if cells:
                found.append((n_rows, *(number(cells[0], position) for position in (2, 0, 3))))
    figure, panels = pyplot().subplots(1, 3, figsize=(11, 2.9))
    labels = ("processor seconds of the fit", "area under the curve", "memory, GB")
    for colour, (name, found) in zip(CLASS_COLOURS, measured.items(), strict=False):
        n_rows, *values = np.array(found).T
        for axes, numbers, label in zip(panels, values, labels, strict=True):
            axes.plot(n_rows, numbers, "o-", color=colour, label=name)
            axes.set(xscale="log", xlabel="rows", title=label)
    panels[0].set_yscale("log")
    panels[2].set_ylim(bottom=0.0)
    panels[0].legend(frameon=False, fontsize="small")
    figure.tight_layout()


PICTURES: dict[str, Callable[[], None]] = {
    "workers": workers,
    "replace_svc": partial(lines, "replace_svc.md", "seconds of the fit", position=2),
    "selection_pays": partial(
        bars,
        "guide/papers.md",
        "test accuracy, percent, 100 columns",
        has="rows, bandwidth",
        names=("plain", "aligned", "posterior"),
        begin=70.0,
    ),
    "limits": partial(lines, "limits.md", "MiB that a plan promises"),
    "against_others": partial(
        bars,
        README,
        "test error, percent",
        names=("LightGBM", "RBF-SVM", "xRFM", "dkl, 1,000 random features", "dkl, 500 searched features"),
    ),
    "from_a_store": partial(
        bars, README, "area under the curve", has="machine", names=("area under the curve",), begin=0.6
    ),
    "flights_as_a_table": partial(lines, README, "area under the curve", has="dkl, 200 steps", is_log=False),
    "at_scale": forecasts,
    "beyond_memory": by_rows,
    "drift_power": partial(
        bars,
        "reference/drift.md",
        "share of pairs that are told apart",
        has="hyppo",
        names=("dkl.drift", "its columns", "permutations", "hyppo"),
    ),
    "intervals": partial(bars, "uncertainty.md", "mean coverage", names=("mean coverage",), line=0.9, begin=0.8),
    "counts": partial(bars, README, "mean deviance of test rows", has="model", names=("mean deviance of test rows",)),
    "suite": partial(gains, "benchmarks/tables/results.md", "dkl"),
    "further": partial(gains, "benchmarks/tables/further.md", "dkl"),
    "answer_times": partial(bars, "benchmarks/guide.md", "microseconds of one answer", has="us"),
    "alignment": partial(
        bars, "papers/README.md", "test error, percent", has="seconds, plain over aligned", names=("aligned", "plain")
    ),
    "table_1": by_columns,
    "figure_4": partial(
        bars,
        "papers/README.md",
        "test error over that of the RBF-SVM",
        names=("RBF-SVM", "MKL", "FKL", "ours"),
        relative="RBF-SVM",
        line=1.0,
    ),
    "draws": draws,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "pictures")
    parser.add_argument("--only", help="names, separated by commas")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(",") if options.only else PICTURES:
        PICTURES[name]()
        path, figure = options.output / f"{name}.png", pyplot().gcf()
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=DOTS, bbox_inches="tight")
        pyplot().close(figure)
        shrink(path)
        print(path, flush=True)


if __name__ == "__main__":
    main()

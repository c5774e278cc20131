"""Figure 4 of "TRF: Learning kernels with tuned random features": errors beside an RBF-SVM, MKL and FKL.

    python examples/papers/figure_4.py --quick                  # a minute: one split, few evaluations
    python examples/papers/figure_4.py                          # three sets of scikit-learn
    python examples/papers/figure_4.py --data DIR --sets boston,yacht --output FOLDER
    python examples/papers/figure_4.py --sets airfoil_self_noise      # of OpenML, by name

A set is DIR/name.npz with X and y, a set of scikit-learn or one of OpenML. On each of five splits of 80 to 20, alike
for each machine: columns standardised and rows scaled into the unit ball by the training rows; hyper-parameters by
ten-fold cross-validation in so many evaluations of the same search (a Gaussian process's upper confidence bound).
"TRF" is the paper's own machine (an RBF reference of length 1, an RBF meta-kernel, the hinge for classes; lambda,
Lambda, gamma and the meta-kernel's length in [0.01, 100]; as many evaluations again for each of 50 to 1,600
frequencies, as in the paper; its minima by the kernel matrix of the rows, `few_rows.py`), "tuned" ours, which
searches the family, the loss and smaller lambda too, in one budget. The paper's Pegasos with an inner loop is not here:
the paper set it aside itself.

Every evaluation is kept in OUTPUT/cells, and a run that was broken off goes on there. Prints the table in Markdown:
the mean and its standard error, percent wrong or root mean squared error in deviations of the targets.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cells, Trials, cell_progress, markdown, report
from figure_4_machines import FREQUENCIES, MACHINES, PRINTED, Machine, Printed, Split, Values
from rich.progress import Progress
from sets import rows_of
from sklearn.exceptions import ConvergenceWarning

from dkl.model_selection.proposals import Proposer
from dkl.model_selection.space import Space, space_of

# of the paper: RBF-SVM, MKL, FKL, tuned random features; the scale of some targets is not known
PAPER = {
    "biodeg": (13.9, 12.3, 12.0, 11.2),
    "car": (1.15, 0.81, 0.75, 0.73),
    "contraceptive": (40.1, 31.6, 35.0, 29.5),
    "fertility": (9.0, 9.0, 9.0, 9.0),
    "ionosphere": (5.92, 4.22, 3.99, 14.7),
    "sonar": (27.1, 20.5, 21.1, 15.5),
    "a8a": (15.7, 13.2, 12.9, 12.6),
    "airfoil": (0.48, None, 0.46, 0.43),
    "auto_mpg": (0.18, 0.17, 0.17, 0.16),
    "boston": (0.43, 0.38, 0.38, 0.38),
    "slump": (0.028, 0.020, 0.20, 0.018),
    "yacht": (0.17, 0.05, 0.07, 0.16),
}
SETS = ("biodeg", "car", "contraceptive", "boston", "auto_mpg", "yacht")
SHIPPED = ("breast_cancer", "wine", "diabetes")
BASELINE, OURS = "RBF-SVM", "tuned"

Errors = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class Plan:
    """What is measured, and where finished cells are kept."""

    sets: tuple[str, ...]
    machines: tuple[str, ...]
    repeats: int
    evaluations: int
    cache: Path
    data: Path | None = None
    frequencies: tuple[int, ...] = FREQUENCIES
    # hyper-parameters of the paper's own machine that are given and not searched
    given: tuple[tuple[str, float], ...] = ()

    def cells(self) -> Iterator[tuple[int, str, str]]:
        """(repeat, set, machine), a whole row of the table before the next split."""
        for repeat in range(self.repeats):
            for name in self.sets:
                for machine in self.machines:
                    yield repeat, name, machine

    def searches(self, machine: str) -> dict[str, Machine]:
        """What is searched by itself and kept as one cell, by what the cell's name says of it: of TRF a number of D."""
        if machine != PRINTED:
            return {"": MACHINES[machine]}
        given = "".join(f", {of} = {value:g}" for of, value in self.given)
        return {f", D = {D}{given}": Printed((D,)) for D in self.frequencies}

    def cell(self, repeat: int, name: str, machine: str, search: str) -> str:
        return f"{name}-{repeat}-{machine}-{self.evaluations}{search}"


def search(
    machine: Machine, split: Split, evaluations: int, progress: Progress, trials: Trials | None = None
) -> tuple[Values, float]:
    """The values of the best score that so many evaluations find, and that score; known scores are not found again."""
    trials = Trials() if trials is None else trials
    stages = machine.stages(split)
    left = round(sum(stage.share for stage in stages) * evaluations)
    task = progress.add_task("  evaluations", total=left)
    best: tuple[Values, float] = ({}, -np.inf)
    for number, stage in enumerate(stages, start=1):
        count = left if number == len(stages) else round(stage.share * evaluations)
        left -= count
        space = space_of(stage.space(split, best[0]))
        for found in searched(machine, split, space, count, trials):
            progress.advance(task)
            best = max(best, found, key=lambda each: each[1])
    progress.remove_task(task)
    return best


def searched(
    machine: Machine, split: Split, space: Space, evaluations: int, trials: Trials
) -> Iterator[tuple[Values, float]]:
    """So many points and their scores, the first five of them a Latin hypercube."""
    proposer = Proposer(space, seed=split.repeat)
    points, scores = np.empty((0, space.width)), np.empty(0)
    for _ in range(evaluations):
        point = proposer.propose(points, scores, 1)
        values = space.decode(point)
        # the points are a function of the scores before them: those that are kept lead to the same search
        score = trials(partial(machine.score, split, values))
        points, scores = np.concatenate([points, point]), np.append(scores, score)
        yield values, float(scores[-1])


def measure(machine: Machine, split: Split, evaluations: int, progress: Progress, trials: Trials) -> dict[str, Any]:
    """One cell: the error on the test rows at the values that the search has found, and the processor's seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        values, score = search(machine, split, evaluations, progress, trials)
        error = machine.test_error(split, values)
    return {"error": error, "score": score, "values": dict(values), "processor": trials.processor}


def measure_given(machine: Machine, split: Split, given: Values) -> dict[str, Any]:
    """One cell without a search: the error on the test rows at given values."""
    space = machine.stages(split)[0].space(split, {})
    values = {name: values[0] for name, values in space.items()} | dict(given)
    return {"error": machine.test_error(split, values), "values": values}


def fill(plan: Plan, progress: Progress) -> Errors:
    """Errors by set and machine, one a split; cells that are there already are read.

    Of several searches of one machine, one for each number of frequencies, the folds choose.
    """
    cells = Cells(plan.cache)
    task = progress.add_task("cells", total=len(list(plan.cells())))
    errors: Errors = {name: {machine: [] for machine in plan.machines} for name in plan.sets}
    for repeat, name, machine in plan.cells():
        progress.update(task, description=f"{name}, split {repeat + 1}, {machine}")

        def measured(
            searched: Machine, cell: str, repeat: int = repeat, name: str = name, kind: str = machine
        ) -> dict[str, Any]:
            split = Split.of(*rows_of(name, plan.data).pooled(), repeat)
            if kind == PRINTED and plan.given:
                return measure_given(searched, split, dict(plan.given))
            return measure(searched, split, plan.evaluations, progress, cells.trials(cell))

        found = []
        for search, searched in plan.searches(machine).items():
            cell = plan.cell(repeat, name, machine, search)
            found.append(cells(cell, partial(measured, searched, cell)))
        # values that are given have no score, and one number of frequencies
        errors[name][machine].append(max(found, key=lambda cell: cell.get("score", 0.0))["error"])
        progress.advance(task)
    return errors


def table_of_frequencies(plan: Plan) -> str:
    """Test errors of the paper's own machine by its number of frequencies, and which of these the folds choose."""
    if PRINTED not in plan.machines or plan.given:
        return ""
    cells = Cells(plan.cache)
    lines = []
    for name in plan.sets:
        found = [
            [cells[plan.cell(repeat, name, PRINTED, search)] for search in plan.searches(PRINTED)]
            for repeat in range(plan.repeats)
        ]
        errors = np.array([[cell["error"] for cell in split] for split in found])
        shown = ["{:.4g} ± {:.2g}".format(*mean_and_error(of_frequencies)) for of_frequencies in errors.T]
        chosen = [plan.frequencies[int(np.argmax([cell["score"] for cell in split]))] for split in found]
        lines.append([name, *shown, " ".join(map(str, chosen))])
    heads = [f"{PRINTED}, test error at D =", *map(str, plan.frequencies), "chosen, split by split"]
    return f"\n{markdown(heads, lines)}\n"


def mean_and_error(values: Any) -> tuple[float, float]:
    """The mean, and the standard error of it: 0 where a single value says nothing."""
    values = np.asarray(values)
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def table(errors: Errors) -> str:
    """The table in Markdown, the paper's columns behind ours."""
    machines = list(next(iter(errors.values())))
    heads = ["set", *machines, "paper: RBF-SVM", "MKL", "FKL", "TRF"]
    lines = []
    for name, row in errors.items():
        shown = ["{:.4g} ± {:.2g}".format(*mean_and_error(row[machine])) for machine in machines]
        paper = ["" if value is None else f"{value:g}" for value in PAPER.get(name, (None,) * 4)]
        lines.append([name, *shown, *paper])
    return markdown(heads, lines)


def verdict(errors: Errors) -> str:
    """On how many sets ours is ahead of the baseline, and on which it is behind by more than a standard error."""
    if any(not {BASELINE, OURS} <= set(row) for row in errors.values()):
        return ""
    behind = {name: mean_and_error(np.subtract(row[OURS], row[BASELINE])) for name, row in errors.items()}
    ahead = [name for name, (mean, _) in behind.items() if mean < 0.0]
    worse = [name for name, (mean, error) in behind.items() if mean > error]
    return (
        f"{OURS} is ahead of {BASELINE} on {len(ahead)} of {len(errors)} sets ({', '.join(ahead) or 'none'}); behind "
        f"by more than a standard error of the difference on {', '.join(worse) or 'none'}."
    )


def picture(errors: Errors, output: Path) -> Path:
    """Errors over the baseline's mean, a mark a split and a bar for the mean."""
    from matplotlib.figure import Figure

    machines = list(next(iter(errors.values())))
    figure = Figure(figsize=(1.8 * len(errors) + 2.0, 4.0), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(machines)
    for number, machine in enumerate(machines):
        for place, row in enumerate(errors.values()):
            scale = np.mean(row.get(BASELINE, row[machine])) or 1.0
            x, shares = place + (number - (len(machines) - 1) / 2) * width, np.divide(row[machine], scale)
            label = machine if place == 0 else None
            axes.bar(x, shares.mean(), 0.9 * width, color=f"C{number}", alpha=0.6, label=label)
            axes.plot(np.full(len(shares), x), shares, ".", color=f"C{number}")
    axes.set_xticks(range(len(errors)), list(errors))
    axes.set_ylabel(f"test error over the mean of {BASELINE}")
    axes.legend(frameon=False, ncols=len(machines))
    output.mkdir(parents=True, exist_ok=True)
    figure.savefig(output / "figure_4.png", dpi=150)
    return output / "figure_4.png"


def chosen() -> tuple[Plan, Path]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with one .npz a set, of X and y")
    parser.add_argument("--sets", help=f"names, such as {','.join(SETS)}, the default with --data")
    parser.add_argument("--machines", default=",".join(MACHINES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--evaluations", type=int, default=105)
    parser.add_argument("--frequencies", default=",".join(map(str, FREQUENCIES)), help="of TRF")
    parser.add_argument("--given", default="", help="values of TRF that are not searched: lam=0.01,Lam=0.01,gamma=100")
    parser.add_argument("--cache", type=Path, help="folder of the finished cells, OUTPUT/cells without it")
    parser.add_argument("--output", type=Path, default=Path("figure_4"), help="folder for the table and the picture")
    parser.add_argument("--quick", action="store_true", help="one split and D, three evaluations")
    options = parser.parse_args()
    if options.quick:
        options.sets, options.repeats, options.evaluations = options.sets or "wine", 1, 3
        options.frequencies = "50"
    given = [one.partition("=") for one in options.given.split(",") if one]
    names = options.sets.split(",") if options.sets else (SHIPPED if options.data is None else SETS)
    plan = Plan(
        sets=tuple(names),
        machines=tuple(options.machines.split(",")),
        repeats=options.repeats,
        evaluations=options.evaluations,
        cache=options.cache or options.output / "cells",
        data=options.data,
        frequencies=tuple(int(D) for D in options.frequencies.split(",")),
        given=tuple((name, float(value)) for name, _, value in given),
    )
    return plan, options.output


def main() -> None:
    plan, output = chosen()
    with cell_progress() as progress:
        errors = fill(plan, progress)
    text = f"{table(errors)}\n\n{verdict(errors)}\n{table_of_frequencies(plan)}"
    report(text, output / "figure_4.md", lambda: picture(errors, output))


if __name__ == "__main__":
    main()

"""The command `suggest`: what rows ask for, each choice with its reason, and the `dkl fit` that takes them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running, command
from dkl.cli.data_commands import HeldOptions
from dkl.cli.model_commands import Store, chosen_split

if TYPE_CHECKING:
    from dkl.suggestions import Suggestion


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "suggest", epilog="Example: [bold]dkl suggest rows.zarr[/bold]")(suggest)


def suggest(
    store: Store,
    held: HeldOptions,
    compute: Compute,
    running: Running,
    *,
    split: Annotated[str | None, typer.Option(help="Rows to judge on (default: train where it is there).")] = None,
    seed: Annotated[int, typer.Option(help="Of the sample, and of the model.")] = 0,
) -> Result:
    """Say which scaling, kernel, learner and number of features the rows ask for, and why.

    Reads the rows once; a thousand of them judge. The last line is the command that fits what is suggested.
    """
    from dkl.suggestions import suggest as suggest_for

    dataset = held.of(chosen_split(store, split, "train"))
    with computing_on(compute):
        suggestion = suggest_for(
            dataset, random_state=seed, progress=running.progress, memory_limit=compute.memory_limit
        )
    facts = {"rows": suggestion.rows, "reasons": list(suggestion.reasons), "estimator": repr(suggestion.estimator)}
    # Without a target there is nothing to fit, so no command can follow.
    options = [] if suggestion.task is None else fit_options(suggestion)
    if not options:
        return Result(facts, Text(repr(suggestion)))
    # The line is one that a shell takes as it stands: names with spaces are quoted.
    by = [text for name, value in vars(held).items() if value for text in (f"--{name.replace('_', '-')}", value)]
    where = [store, "model.zarr", *([] if split is None else ["--split", split]), *by]
    line = shlex.join(["dkl", "fit", *where, *options])
    return Result(facts | {"command": line}, Text.assemble(f"{suggestion!r}\n\n", (line, "bold")))


def fit_options(suggestion: Suggestion) -> list[str]:
    """The options of `dkl fit` that make the suggested estimator."""
    from dkl.registry import LEARNERS

    features, machine = suggestion.features, suggestion.advice.machine
    family = features.family
    given: dict[str, Any] = {
        # Learners are named by their class here and by their key in the shell; the registry knows both.
        "learner": next(entry.key for entry in LEARNERS if entry.name == type(features).__name__),
        "features": features.n_features,
        "scaling": features.scaling or "none",
        "family": type(family).__name__.lower(),
        "sigma": getattr(family, "sigma", "median"),
        **machine,
        "seed": suggestion.seed,
    }
    return [text for name, value in given.items() for text in (f"--{name}", str(value))]

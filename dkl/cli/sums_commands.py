"""The commands `sums agree`, `sums export` and `sums fit`: several sites fit a model without sharing their rows."""

from __future__ import annotations

from typing import Annotated

import typer

from dkl.cli.cluster import Compute, computing_on
from dkl.cli.command import Result, Running
from dkl.cli.data_commands import Store
from dkl.cli.model_commands import chosen_split
from dkl.cli.model_options import FeatureOptions, named_learner
from dkl.cli.output_checks import check_before, check_model

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output.")]


def agree(
    store: Store,
    agreement: Annotated[str, typer.Argument(help="agreement.json, a readable file, or a store.", show_default=False)],
    features: FeatureOptions,
    compute: Compute,
    running: Running,
    *,
    site: Annotated[
        list[str], typer.Option(help="NAME=BLOCKS of each site, in the order of block numbers. Repeat it.")
    ],
    seed: Annotated[int, typer.Option(help="Seed of the candidates.")] = 0,
    overwrite: Overwrite = False,
) -> Result:
    """Fix candidates, scaling, classes and block numbers, so that several sites can fit one model.

    STORE has rows that all sites may know, such as public or artificial ones, with the columns and classes of the
    sites' rows; scaling and bandwidth are computed from them. `dkl info` shows the number of blocks of a store. Tuned
    machines use the squared error.
    """
    from dkl.federated.agreement import agree as agree_on
    from dkl.federated.agreement import is_agreement_file

    # `north=8` names a site and its number of blocks
    sites: dict[str, int] = {}
    for text in site:
        name, _, count = text.partition("=")
        if not name or not count.isdigit() or name in sites:
            raise typer.BadParameter(f"--site takes NAME=BLOCKS once a site, such as north=8, not {text!r}")
        sites[name] = int(count)
    if agreement.endswith(".json"):
        check_before(agreement, "agreement", overwrite=overwrite, inputs=[store], is_own=is_agreement_file)
    else:
        check_model(agreement, overwrite=overwrite, inputs=[store])
    rows = chosen_split(store, None, "")
    learner = named_learner(features, seed=seed, task=rows.task, compute=compute, running=running)
    if features.learner == "tuned":
        # of the losses of tuned machines, only the squared error is a function of sums
        learner.set_params(loss="squared_error")
    with computing_on(compute):
        settled = agree_on(learner, rows, sites)
    settled.save(agreement, overwrite=overwrite)
    facts = {"learner": type(learner).__name__, "columns": rows.n_columns, "sites": sites, "blocks": settled.n_blocks}
    return Result({"agreement": agreement, **facts, "digest": settled.digest})


def export(
    store: Store,
    sums: Annotated[str, typer.Argument(help="Path or URL of the sums to write.", show_default=False)],
    compute: Compute,
    running: Running,
    *,
    agreement: Annotated[str, typer.Option(help="The output of `dkl sums agree`.", show_default=False)],
    site: Annotated[str, typer.Option(help="Name of the site of these rows.", show_default=False)],
    split: Annotated[str, typer.Option(help="A split of the store.", show_default="all rows")] = "",
    allow_few_rows: Annotated[
        bool,
        typer.Option("--allow-few-rows", help="Also write sums of fewer rows than columns, which may reveal rows."),
    ] = False,
    overwrite: Overwrite = False,
) -> Result:
    """Write the sums of one site's rows that the agreement defines, but not the rows.

    A sum of fewer rows than columns is refused, since single rows could be inferred from it.
    """
    from dkl.federated.exporting import export_sums

    check_model(sums, overwrite=overwrite, inputs=[store, agreement])
    rows = chosen_split(store, split, "")
    with computing_on(compute):
        made = export_sums(
            agreement,
            rows,
            sums,
            site=site,
            allow_few_rows=allow_few_rows,
            overwrite=overwrite,
            device=compute.device,
            progress=running.progress,
            memory_limit=compute.memory_limit,
        )
    return Result({"sums": sums, "site": site, "rows": int(made.rows.sum()), "rows of each sum": made.rows.tolist()})


def fit(
    agreement: Annotated[str, typer.Argument(help="The output of `dkl sums agree`.", show_default=False)],
    model: Annotated[str, typer.Argument(help="Path or URL of the model to write.", show_default=False)],
    sums: Annotated[
        list[str], typer.Argument(help="The outputs of `dkl sums export` of all sites.", show_default=False)
    ],
    compute: Compute,
    running: Running,
    *,
    without: Annotated[list[str] | None, typer.Option(help="Leave this site out. May be repeated.")] = None,
    overwrite: Overwrite = False,
) -> Result:
    """Fit a model to the sums of all sites, with the same bits as a fit to all of their rows in one store."""
    from dkl.federated.from_sums import fit_from_sums

    check_model(model, overwrite=overwrite, inputs=[agreement, *sums])
    with computing_on(compute):
        learner = fit_from_sums(agreement, sums, without=without or ())
    learner.save(model, overwrite=overwrite)
    facts = {"learner": type(learner).__name__, "rows": learner.provenance_.rows, "without": list(without or ())}
    return Result({"model": model, **facts, "features": int(learner.feature_map_.n_features)})

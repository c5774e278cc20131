"""The command `export`: a model as a file that answers without dkl."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dkl.cli.command import Result, Running, command
from dkl.cli.model_commands import Model
from dkl.cli.output_checks import check_before
from dkl.data.store.outputs import written_whole

_SUFFIXES = (".onnx", ".joblib")


def register(app: typer.Typer) -> None:
    """Add this command to the program."""
    command(app, "export", epilog="Example: [bold]dkl export model.zarr model.onnx[/bold]")(export)


def export(
    model: Model,
    output: Annotated[str, typer.Argument(help="model.onnx or model.joblib.", show_default=False)],
    running: Running,
    *,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an exported model that is there.")] = False,
) -> Result:
    """Write a model as an ONNX graph, or as a Pipeline of scikit-learn: both answer without dkl.

    An ONNX graph takes raw columns by their names, a pipeline (joblib) raw rows as a data frame. Load pipelines only
    where you trust the file, as with every pickle.
    """
    from dkl.model_io import load_model

    suffix = Path(output).suffix
    if "://" in output or suffix not in _SUFFIXES:
        raise ValueError(f"the output is {output!r}; it must be a local path that ends in .onnx or .joblib")
    check_before(output, "exported model", overwrite=overwrite, inputs=[model], is_own=is_export)
    estimator = load_model(model)
    with written_whole(output) as hidden:
        if suffix == ".onnx":
            estimator.to_onnx(hidden)
        else:
            import joblib

            joblib.dump(estimator.to_sklearn(), hidden)
        size = Path(hidden).stat().st_size
    return Result({"model": model, "output": output, "bytes": size})


def is_export(path: Path) -> bool:
    """Whether a file is certain to be one that this command wrote: an ONNX graph says who produced it."""
    from dkl.export.onnx_graph import is_graph

    # A pickle would have to be run to be known.
    return path.suffix == ".onnx" and is_graph(path)

"""What is checked of an output before the work that leads to it."""

from __future__ import annotations

from pathlib import Path


def refuse_existing(path: str, overwrite: bool) -> None:
    """Raise before the work if the output is there and may not be replaced."""
    if "://" not in path and Path(path).exists() and not overwrite:
        raise FileExistsError(f"{path!r} is there already; give another name, or --overwrite to replace it")
    if "://" not in path and not Path(path).absolute().parent.is_dir():
        raise FileNotFoundError(f"the folder of {path!r} is not there; make it first")

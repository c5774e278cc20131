"""Checks of outputs before the work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from dkl.data.store.location import Location
from dkl.data.store.outputs import check_folder, writing, written_whole
from dkl.data.store.overwriting import check_output, what_is_at
from dkl.plain_files import read_plain


def check_before(
    path: str | Path,
    kind: str,
    *,
    overwrite: bool,
    inputs: Iterable[str | Path | None] = (),
    is_own: Callable[[Path], bool] | None = None,
    belongs: Callable[[str], bool] | None = None,
) -> None:
    """`dkl.data.store.overwriting.check_output`; a missing folder is an error, too."""
    location = Location.of(path)
    check_output(location, kind, overwrite=overwrite, inputs=inputs, is_own=is_own, belongs=belongs)
    # Python functions create a missing folder; in a shell it is probably a typing error
    check_folder(location)


def check_model(path: str, *, overwrite: bool, inputs: Iterable[str | Path | None]) -> None:
    """`check_before` for the store of a model."""
    from dkl.model_io import is_part_of_a_model

    check_before(path, "model", overwrite=overwrite, inputs=inputs, belongs=is_part_of_a_model)


LIST_OF_OUTPUTS = ".dkl-output"
"""The file in an output folder that lists the names which commands of dkl wrote, as a JSON list."""


def prepare_folder(path: Path, names: Sequence[str], inputs: Iterable[str | Path | None] = ()) -> None:
    """Create a folder for outputs with fixed names, or check that only outputs of dkl in it would be replaced.

    The names are added to `LIST_OF_OUTPUTS`, by which later commands recognise the outputs.

    Parameters
    ----------
    path : Path
    names : sequence of str
        The names that the command may write.
    inputs : iterable of path
        The paths that the command reads.

    Raises
    ------
    FileExistsError
        If one of the names exists and no command of dkl wrote it, or the list is a link or not a file.
    ValueError, OSError
        If an output is an input, or the folder is not writable.
    """
    location, read = Location.of(path), list(inputs)
    known, listed = _listed_outputs(path), path / LIST_OF_OUTPUTS
    if listed.is_symlink() or (listed.exists() and not listed.is_file()):
        # writing to a pipe would wait for a reader, and writing to a link would replace another file
        raise FileExistsError(
            f"'{listed}' is no file of its own, in which commands of dkl list what they have written; remove it, "
            "or give another folder with --output"
        )
    for name in names:
        place = location.child(name)
        # a file of the user with this name is never replaced
        is_there = what_is_at(place) is not None
        if is_there and name not in known:
            raise FileExistsError(
                f"{place.place} is there and was not made by this command, so it is not replaced; move it "
                "elsewhere, or give another folder with --output"
            )
        kind = str(what_is_at(place)) if is_there else "result"
        check_output(place, kind, overwrite=is_there, inputs=read)
    with writing(location):
        path.mkdir(parents=True, exist_ok=True)
    with written_whole(listed) as hidden:
        # names of earlier commands stay in the list, as `demo` and `compare` may share a folder
        hidden.write_text(json.dumps(sorted(known | set(names))), encoding="utf-8")


def _listed_outputs(path: Path) -> set[str]:
    """The names in the list of the folder; empty if it is absent or damaged, so that nothing is replaced."""
    try:
        listed = json.loads(read_plain(path / LIST_OF_OUTPUTS))
    except (OSError, ValueError):
        return set()
    return {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()

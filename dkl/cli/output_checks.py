"""What is checked of an output before the work that leads to it."""

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
    """As `dkl.data.store.overwriting.check_output`; a shell takes a folder that is not there for misspelt, too."""
    location = Location.of(path)
    check_output(location, kind, overwrite=overwrite, inputs=inputs, is_own=is_own, belongs=belongs)
    # In Python a missing folder is made; in a shell it is more likely a typing error.
    check_folder(location)


class OutputFolder:
    """A folder that a command fills with files of fixed names, of which it replaces only those that it made itself.

    Which ones it made stands in the file ``.dkl-output`` of the folder: a JSON list of names.

    Parameters
    ----------
    path : Path
        Made if it is not there.
    names : sequence of str
        What the command may write there.
    inputs : iterable of path
        What the command reads.

    Raises
    ------
    FileExistsError
        One of the names is there, and no command of dkl has made it in this folder; or the list is a link or no file.
    ValueError, OSError
        An output is an input, or nothing can be written there.
    """

    LIST = ".dkl-output"

    def __init__(self, path: Path, names: Sequence[str], inputs: Iterable[str | Path | None] = ()) -> None:
        location, read = Location.of(path), list(inputs)
        known, listed = self._known(path), path / self.LIST
        if listed.is_symlink() or (listed.exists() and not listed.is_file()):
            # what is written to a pipe waits for a reader, and through a link it replaces a file elsewhere
            raise FileExistsError(
                f"'{listed}' is no file of its own, in which commands of dkl list what they have written; remove it, "
                "or give another folder with --output"
            )
        for name in names:
            place = location.child(name)
            # The user's own file of the same name is never replaced, not even with an option.
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
            # Names of earlier commands stay in the list: `demo` and `compare` may share a folder.
            hidden.write_text(json.dumps(sorted(known | set(names))), encoding="utf-8")

    def _known(self, path: Path) -> set[str]:
        """The names in the list of the folder; none where there is no list, or a strange one."""
        try:
            # A list that is damaged vouches for nothing, and nothing is replaced then.
            listed = json.loads(read_plain(path / self.LIST))
        except (OSError, ValueError):
            return set()
        return {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()

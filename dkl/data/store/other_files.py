"""Finds files in the folder of a store that dkl did not write, which would be deleted if the store were replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dkl.data.store.location import Location

_SHOWN = 5
_TOKEN = "[0-9a-f]{32}"
# Files of zarr, also unfinished ones of killed processes, and files in hidden folders of dkl's writers.
_FILES_OF_DKL = re.compile(
    rf"(?:.*/)?(?:zarr\.json|c(?:/\d+)*|[^/]+\.{_TOKEN}\.partial)|(?:.*/)?\.[^/]+\.{_TOKEN}\.(?:partial|replaced)/.*"
)
# Files that file systems and file managers create.
_SYSTEM_FILES = re.compile(r"(?:.*/)?(?:\.DS_Store|\._[^/]*|Thumbs\.db|desktop\.ini|\.nfs[^/]*)")
_DATASET_FILES = re.compile(
    r"zarr\.(?:json|\w+\.partial)|\..*|(?:X|y|sample_weight|row_id|group|time|texts|manifest|splits|versions)/.*"
)
_VERSION_FILES = re.compile(r"versions/(?:zarr\.|\d+/|\.)")


def other_files(location: Location, marker: Mapping[str, Any]) -> list[str]:
    """The files in a store's folder that do not belong to it; `marker` is that of the store."""
    is_dataset = marker.get("kind") == "dataset"

    def is_ours(name: str) -> bool:
        if not _FILES_OF_DKL.fullmatch(name):
            return False
        # zarr arrays of the user in the folder of a dataset have names other than those of the dataset's arrays
        if is_dataset and name.startswith("versions/"):
            return bool(_VERSION_FILES.match(name))
        return not is_dataset or bool(_DATASET_FILES.fullmatch(name))

    return [name for name in location.files() if not _SYSTEM_FILES.fullmatch(name) and not is_ours(name)]


def check_no_other_files(location: Location, marker: Mapping[str, Any]) -> None:
    """Raise FileExistsError, with a list, if there are other files in the folder of a store to be replaced."""
    others = other_files(location, marker)
    if others:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise FileExistsError(
            f"{location.place} holds files that dkl did not write: {', '.join(map(repr, others[:_SHOWN]))}{more}. "
            "overwrite=True would delete them, so nothing was replaced; move them away, or choose another path"
        )

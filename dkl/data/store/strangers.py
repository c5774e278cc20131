"""What lies in the folder of a store and was not written by dkl: a user's own files, which replacing would delete."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dkl.data.store.location import Location

_SHOWN = 5
_TOKEN = "[0-9a-f]{32}"
# What zarr writes (a file that it had begun when it was killed among them), and what writers of dkl leave.
_WRITTEN = re.compile(
    rf"(?:.*/)?(?:zarr\.json|c(?:/\d+)*|[^/]+\.{_TOKEN}\.partial)|(?:.*/)?\.[^/]+\.{_TOKEN}\.(?:partial|replaced)/.*"
)
# What file systems and file managers put into folders by themselves.
_BY_SYSTEMS = re.compile(r"(?:.*/)?(?:\.DS_Store|\._[^/]*|Thumbs\.db|desktop\.ini|\.nfs[^/]*)")
_OF_DATASETS = re.compile(
    r"zarr\.(?:json|\w+\.partial)|\..*|(?:X|y|sample_weight|row_id|group|time|texts|manifest|splits|versions)/.*"
)
_IN_VERSIONS = re.compile(r"versions/(?:zarr\.|\d+/|\.)")


def strangers(location: Location, marker: Mapping[str, Any]) -> list[str]:
    """Files in the folder of the store whose marker is given that are not of that store."""
    is_dataset = marker.get("kind") == "dataset"

    def is_ours(name: str) -> bool:
        if not _WRITTEN.fullmatch(name):
            return False
        # A zarr array that a user put beside those of a dataset looks as zarr writes, and does not begin as ours do.
        if is_dataset and name.startswith("versions/"):
            return bool(_IN_VERSIONS.match(name))
        return not is_dataset or bool(_OF_DATASETS.fullmatch(name))

    return [name for name in location.files() if not _BY_SYSTEMS.fullmatch(name) and not is_ours(name)]


def check_no_strangers(location: Location, marker: Mapping[str, Any]) -> None:
    """Refuse to replace a store in whose folder there are other files.

    Raises
    ------
    FileExistsError
        They are listed.
    """
    others = strangers(location, marker)
    if others:
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        raise FileExistsError(
            f"{location.place} holds files that dkl did not write: {', '.join(map(repr, others[:_SHOWN]))}{more}. "
            "overwrite=True would delete them, so nothing was replaced; move them away, or choose another path"
        )

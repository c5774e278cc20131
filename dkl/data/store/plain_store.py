"""PlainStore: zarr's store of a local folder, which raises errors for pipes and devices instead of waiting for them."""

from __future__ import annotations

import os
import stat
from typing import Any

from zarr.storage import LocalStore

from dkl.errors import StoreError


class PlainStore(LocalStore):
    """A local folder of files; reading anything else is an error."""

    async def get(self, key: str, *given: Any, **named: Any) -> Any:
        """As `LocalStore.get`.

        Raises
        ------
        StoreError
            For a pipe, a socket or a device, since reading it may never end.
        """
        self._check(key)
        return await super().get(key, *given, **named)

    def get_sync(self, key: str, **named: Any) -> Any:
        """As `LocalStore.get_sync`, with the errors of `get`."""
        self._check(key)
        return super().get_sync(key, **named)  # type: ignore[misc]

    async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
        """As `LocalStore.get_partial_values`, with the errors of `get`."""
        ranges = list(key_ranges)
        for key, _ in ranges:
            self._check(key)
        return await super().get_partial_values(prototype, ranges)

    def _check(self, key: str) -> None:
        path = self.root / key
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise StoreError(f"{str(path)!r} is a pipe or a device, where a file is expected; copy the store anew")

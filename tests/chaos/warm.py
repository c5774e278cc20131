"""Imported once by the process that drivers are forked from: fits that load all compiled code, without a thread."""

from __future__ import annotations

import dask

from tests.chaos.fits import KINDS, make_arrays

with dask.config.set(scheduler="synchronous"):
    for make in KINDS.values():
        make().fit(*make_arrays(100))

"""njit: Numba's compiler, which keeps the kernels on disk for later processes where there is a folder for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from dkl.process import tell_of_no_folder


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """A decorator: `numba.njit(cache=True, ...)`, or without its cache where Numba finds no folder to write it to.

    A package that another user has installed and a home that is missing or read-only are usual in containers.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError as error:
            if "no locator available" not in str(error):
                raise
            tell_of_no_folder()
            return numba.njit(**options)(function)

    return compiled

"""Saved: the method by which every fitted model writes itself to a store."""

from __future__ import annotations

from typing import Any


class Saved:
    """A model that `dkl.load_model` reads back."""

    def save(self, store: Any, *, overwrite: bool = False, **storage_options: Any) -> None:
        """Write the fitted model to a folder or an fsspec URL: a zarr group of arrays and JSON.

        Parameters
        ----------
        store : str or Path
        overwrite : bool
            Replace a model that is there.
        **storage_options
            For fsspec.

        Raises
        ------
        FileExistsError
            If there is a model and `overwrite` is False, or anything else.
        NotFittedError
            Before `fit`.

        See Also
        --------
        dkl.load_model
        """
        from dkl.model_io import save

        save(self, store, overwrite=overwrite, **storage_options)

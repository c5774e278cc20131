"""Saved: the methods by which every fitted model leaves the process: to a store, as ONNX, as scikit-learn objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class SavingMixin:
    """Methods that save a model, for `dkl.load_model` or for other programs."""

    def save(self, store: str | Path, *, overwrite: bool = False, **storage_options: Any) -> None:
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

        model: Any = self
        save(model, store, overwrite=overwrite, **storage_options)

    def to_onnx(
        self, path: str | Path | None = None, *, dtype: str | None = None, opset: int = 18, std: bool = False
    ) -> Any:
        """The fitted model as an ONNX graph, scaling and the encoding of raw columns included.

        Parameters
        ----------
        path : str, Path or None
            Where the graph is written to, if anywhere.
        dtype : {"float32", "float64"} or None
            Of numbers that go in, arithmetic and answers; None is the model's own.
        opset : int
            Of the ONNX operations, at least 15.
        std : bool
            A further output ``std`` of a regressor: what ``predict(X, return_std=True)`` says.

        Returns
        -------
        onnx.ModelProto
            Inputs: ``X`` of shape (n, d). A model of raw tables with texts or missing values takes one input of shape
            (n, 1) a raw column instead, by its name: texts for categories, numbers for the others; a missing number is
            NaN, a missing text the empty one. Of dates these are days since 1970-01-01 by the clock of their zone, of
            times of day parts of a day, of texts that write numbers these numbers: the inputs say so. Outputs:
            ``label`` (n,), ``probabilities`` (n, K) where the model has them, and ``scores`` (n, 1) or (n, K) of a
            classifier; ``prediction`` of a regressor; ``features`` of a feature learner. A graph checks nothing: rows
            that `predict` refuses get an answer that means nothing.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ImportError
            If onnx is not installed: ``pip install 'dkl[onnx]'``.
        ValueError
            If the opset is too old or not known yet, a column has the name of an output, the graph would be above
            2 GB, or a model has no deviations that it was asked for.
        TypeError
            If columns hold free text, texts of a column cannot be told apart in a graph, or a kernel at landmarks is
            none of Gaussian, Laplacian and Matern(0.5).
        """
        from dkl.export.onnx_graph import to_onnx

        model: Any = self
        return to_onnx(model, path, dtype=dtype, opset=opset, std=std)

    def to_sklearn(self) -> Any:
        """The fitted model as a Pipeline of scikit-learn's own objects: it predicts, and is pickled, without dkl.

        Scaling is part of the frequencies of an `RBFSampler`; kernels at landmarks are a `Nystroem`, products of steps
        and hinges clipped sums of binarised and clipped columns. Decision values of a calibrated classifier are divided
        by its temperature. Pipelines take rows in memory.

        Returns
        -------
        sklearn.pipeline.Pipeline

        Raises
        ------
        NotFittedError
            Before `fit`.
        TypeError
            If scikit-learn has no object for part of the model: arc-cosine features and harmonics, kernels at landmarks
            other than Gaussian, Laplacian and linear ones, scaling by quantiles, dates, categories that are numbers;
            the part is named.
        """
        from dkl.export.pipeline import to_sklearn

        model: Any = self
        return to_sklearn(model)

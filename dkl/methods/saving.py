"""SavingMixin: methods that export a fitted model to a store, to ONNX, or to scikit-learn objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class SavingMixin:
    """Methods that save a model for `dkl.load_model` or for other programs."""

    def save(self, store: str | Path, *, overwrite: bool = False, **storage_options: Any) -> None:
        """Write the fitted model to a folder or an fsspec URL: a zarr group of arrays and JSON.

        Parameters
        ----------
        store : str or Path
        overwrite : bool
            Replace an existing model.
        **storage_options
            Options of the fsspec file system.

        Raises
        ------
        FileExistsError
            If there is a model and `overwrite` is False, or if there is anything else.
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
            The file to write the graph to; None writes none.
        dtype : {"float32", "float64"} or None
            Of inputs, arithmetic and outputs; None is the model's own.
        opset : int
            Version of the ONNX operator set, at least 15.
        std : bool
            Give the graph of a regressor a second output ``std``, as ``predict(X, return_std=True)`` does.

        Returns
        -------
        onnx.ModelProto
            Inputs: ``X`` of shape (n, d). A model of raw tables with texts or missing values has one input of shape (n,
            1) for each raw column instead, by its name: text for categories, numbers for the others; a missing number
            is NaN, a missing text the empty string. Dates are days since 1970-01-01 in local time, times of day are
            fractions of a day, texts that represent numbers are these numbers: the inputs say so. Outputs: ``label``
            (n,), ``probabilities`` (n, K) if the model has them, and ``scores`` (n, 1) or (n, K) for a classifier;
            ``prediction`` for a regressor; ``features`` for a feature learner. A graph checks nothing: for rows that
            `predict` refuses its outputs are meaningless.

        Raises
        ------
        NotFittedError
            Before `fit`.
        ImportError
            If onnx is not installed: ``pip install 'dkl[onnx]'``.
        ValueError
            If the opset is too old or not known yet, a column has the name of an output, the graph would exceed 2 GB,
            or `std` is set for a model without standard deviations.
        TypeError
            If columns hold free text, a graph cannot distinguish the texts of a column, or a kernel at landmarks is
            neither Gaussian, nor Laplacian, nor Matern(0.5).
        """
        from dkl.export.onnx_graph import to_onnx

        model: Any = self
        return to_onnx(model, path, dtype=dtype, opset=opset, std=std)

    def to_sklearn(self) -> Any:
        """The fitted model as a Pipeline of scikit-learn's own objects: it predicts, and is pickled, without dkl.

        Scaling becomes part of the frequencies of an `RBFSampler`; kernels at landmarks become a `Nystroem`; products
        of steps and hinges become clipped sums of binarised and clipped columns. Decision values of a calibrated
        classifier are divided by its temperature. The pipeline needs rows in memory.

        Returns
        -------
        sklearn.pipeline.Pipeline

        Raises
        ------
        NotFittedError
            Before `fit`.
        TypeError
            If scikit-learn has no object for part of the model, which the error names: arc-cosine features and
            harmonics, kernels at landmarks other than Gaussian, Laplacian, Matern and linear ones, scaling="counts"
            beside columns that are not counts, and categories that look like numbers.
        """
        from dkl.export.pipeline import to_sklearn

        model: Any = self
        return to_sklearn(model)

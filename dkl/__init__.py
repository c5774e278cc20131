"""dkl: learn which Fourier features matter, out of core, on any Dask cluster."""

from __future__ import annotations

import importlib
from typing import Any

from dkl.version import __version__

# What a user imports, and where it lives. Nothing is loaded before it is asked for: `import dkl.blocks` needs no Dask.
_HOMES = {
    "create_dataset": "dkl.data.create",
    "open_dataset": "dkl.data.dataset",
    "from_zarr": "dkl.data.dataset",
    "ingest": "dkl.data.ingest",
    "CsvFormat": "dkl.data.csv_files",
    "LibsvmFormat": "dkl.data.libsvm_files",
    "NpzFormat": "dkl.data.npz_files",
    "Dataset": "dkl.data.dataset",
    "Gaussian": "dkl.features.families",
    "Laplacian": "dkl.features.families",
    "Cauchy": "dkl.features.families",
    "Matern": "dkl.features.families",
    "ArcCosine": "dkl.features.families",
    "Coordinates": "dkl.features.families",
    "SphericalHarmonics": "dkl.features.harmonics",
    "SparseFrequencies": "dkl.features.sparse_frequencies",
    "RBFMetaKernel": "dkl.selection.meta_kernels",
    "MaternMetaKernel": "dkl.selection.meta_kernels",
    "PolynomialMetaKernel": "dkl.selection.meta_kernels",
    "SumMetaKernel": "dkl.selection.meta_kernels",
    "DeltaMetaKernel": "dkl.selection.meta_kernels",
    "FeatureMap": "dkl.features.feature_map",
    "RandomFeatures": "dkl.learners.random_features",
    "AlignedFeatures": "dkl.learners.aligned",
    "PosteriorFeatures": "dkl.learners.posterior",
    "LeverageFeatures": "dkl.learners.leverage",
    "LandmarkFeatures": "dkl.learners.landmarks",
    "MarginFeatures": "dkl.learners.margin",
    "JointFeatures": "dkl.learners.joint",
    "PeakFeatures": "dkl.learners.peaks",
    "TunedClassifier": "dkl.learners.tuned",
    "TunedRegressor": "dkl.learners.tuned",
    "KernelClassifier": "dkl.learners.kernel_machines",
    "KernelRegressor": "dkl.learners.kernel_machines",
    "tune": "dkl.search.tuning",
    "compare": "dkl.search.comparing",
    "sweep": "dkl.search.sweep",
    "plan": "dkl.planning",
    "report": "dkl.reporting",
    "suggest": "dkl.suggestions",
    "load_model": "dkl.model_io",
    "Predictor": "dkl.export.predictor",
    "Event": "dkl.events",
    "StopRequested": "dkl.events",
}

# Packages that users reach as ``dkl.explain.importance(...)``.
_MODULES = ("bounds", "explain", "plots", "testing")

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dkl.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'dkl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, *_MODULES])

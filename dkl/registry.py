"""The one table of what users can name: public names, learners, losses, penalty rules, and what model files may hold.

`dkl` itself, the names in ``KernelClassifier(features="aligned")``, the shell's options and help, `dkl.compare`, the
reference and model files read it. A new learner is one line of `LEARNERS`, a new loss one of `LOSSES`. Each has the
module where it lives, which nothing imports before it is asked for.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LearnerEntry:
    """A learner that users reach by name.

    Parameters
    ----------
    key : str
        What it is called in ``features="..."``, in ``dkl fit --learner`` and in `dkl.compare`.
    name : str
        Its class, as `dkl` hands it out and as model files name it.
    module : str
        Where the class lives.
    needs_classes : bool
        It learns from class labels only.
    exact_head : bool
        Its few, strong columns suit exact Newton steps and a penalty chosen on held-out rows.
    compared_candidates : int or None
        How many candidates `dkl.compare` gives it for each column of the largest size; None leaves its own number.
    """

    key: str
    name: str
    module: str
    needs_classes: bool = False
    exact_head: bool = False
    compared_candidates: int | None = None

    @property
    def learner_class(self) -> Any:
        """The class, imported now."""
        # Importing all learners takes a second, and a table of names must not cost that.
        return getattr(importlib.import_module(self.module), self.name)


@dataclass(frozen=True)
class LossEntry:
    """A loss of linear models, as `loss` of machines and ``dkl fit --loss`` name it.

    Parameters
    ----------
    class_name : str
        Its class, a `Loss`.
    formula : str
        The loss of a row with target y and score f.
    solvers : mapping of str to tuple of str
        For each task whose machine offers it ("classification", "regression") the solvers: "newton", for which value,
        slope and curvature suffice, and "sgd", whose slopes are compiled (`dkl.kernels.sgd`).
    equals : str
        scikit-learn's estimator with the same coefficients on the same features, at the same alpha where it names none;
        N is the total weight of the rows.
    parameter : {"", "epsilon", "quantiles"}
        The parameter of machines and the option of the shell on which the loss depends.
    link : {"", "log", "sorted"}
        How predictions follow from scores: "" unchanged, "log" by the exponential (scores are logarithms of means),
        "sorted" by sorting the scores of a row (they are its quantiles, which must not cross).
    module : str
        Where the class lives.
    """

    class_name: str
    formula: str
    solvers: Mapping[str, tuple[str, ...]]
    equals: str = ""
    parameter: str = ""
    link: str = ""
    module: str = "dkl.solvers.losses"

    @property
    def loss_class(self) -> Any:
        """The class, imported now."""
        return getattr(importlib.import_module(self.module), self.class_name)


@dataclass(frozen=True)
class PenaltyRule:
    """A rule that chooses among the penalties compared on held-out rows, as `alpha` of machines names it.

    Parameters
    ----------
    function_name : str
        A function of a `PenaltyChoice` that returns the position of a penalty.
    description : str
        The penalty that it chooses.
    module : str
        Where the function lives.
    """

    function_name: str
    description: str
    module: str = "dkl.linear.judge"

    @property
    def function(self) -> Any:
        """The function, imported now."""
        return getattr(importlib.import_module(self.module), self.function_name)


# Plain random features come first, since the others are compared with them.
LEARNERS = (
    LearnerEntry("random", "RandomFeatures", "dkl.methods.random_features"),
    LearnerEntry("aligned", "AlignedFeatures", "dkl.methods.aligned.learner", compared_candidates=20),
    LearnerEntry(
        "posterior",
        "PosteriorFeatures",
        "dkl.methods.posterior.learner",
        needs_classes=True,
        compared_candidates=20,
    ),
    LearnerEntry("landmarks", "LandmarkFeatures", "dkl.methods.landmarks.learner", needs_classes=True),
    LearnerEntry("leverage", "LeverageFeatures", "dkl.methods.leverage.learner"),
    LearnerEntry("peaks", "PeakFeatures", "dkl.methods.peaks.learner", exact_head=True),
    LearnerEntry("margin", "MarginFeatures", "dkl.methods.margin.learner", exact_head=True),
    LearnerEntry("nystrom", "NystromFeatures", "dkl.methods.nystrom.learner", exact_head=True),
    LearnerEntry("steps", "StepFeatures", "dkl.methods.steps.learner", exact_head=True),
    # All of its candidates are solved for together in one quadratic program, so it is given few.
    LearnerEntry("joint", "JointFeatures", "dkl.methods.density.joint_learner", compared_candidates=1),
)

# Solvers of losses of labels, and of numbers.
_OF_LABELS, _OF_NUMBERS = {"classification": ("newton", "sgd")}, {"regression": ("newton", "sgd")}
# The losses by name, those of labels first.
LOSSES = {
    "hinge": LossEntry("HingeLoss", "max(0, 1 - y f)", {"classification": ("sgd",)}, "SGDClassifier(alpha=alpha)"),
    "squared_hinge": LossEntry("SquaredHingeLoss", "max(0, 1 - y f)^2", _OF_LABELS, "LinearSVC(C=1/(alpha N))"),
    "log_loss": LossEntry(
        "LogLoss", "log(1 + exp(-y f)); all classes together by newton", _OF_LABELS, "LogisticRegression(C=1/(alpha N))"
    ),
    # Newton steps of the softmax are those of the log loss
    "softmax": LossEntry(
        "SoftmaxLoss",
        "log sum exp(f_k) - f_y of all classes together; newton fits it as log_loss",
        {"classification": ("sgd",)},
        "LogisticRegression(C=1/(alpha N))",
    ),
    "modified_huber": LossEntry(
        "ModifiedHuberLoss", "squared_hinge, straight below y f = -1", {"classification": ("sgd",)}, "SGDClassifier"
    ),
    "squared_error": LossEntry(
        "SquaredErrorLoss",
        "(y - f)^2 / 2, of labels with y = -1 and +1",
        {"classification": ("newton",), **_OF_NUMBERS},
        "Ridge(alpha N)",
    ),
    "huber": LossEntry(
        "HuberLoss", "(y - f)^2 / 2 up to an error of epsilon, then straight", _OF_NUMBERS, "SGDRegressor", "epsilon"
    ),
    "epsilon_insensitive": LossEntry(
        "EpsilonInsensitiveLoss", "max(0, abs(y - f) - epsilon)", {"regression": ("sgd",)}, "SGDRegressor", "epsilon"
    ),
    "pinball": LossEntry(
        "PinballLoss",
        "max(q (y - f), (q - 1) (y - f)) for each q of quantiles",
        _OF_NUMBERS,
        "QuantileRegressor(quantile=q), whose penalty is another",
        "quantiles",
        "sorted",
    ),
    "poisson": LossEntry(
        "PoissonLoss",
        "half the deviance of a count or rate, mean exp(f)",
        _OF_NUMBERS,
        "PoissonRegressor",
        link="log",
    ),
    "gamma": LossEntry(
        "GammaLoss", "half the deviance of a size above 0, mean exp(f)", _OF_NUMBERS, "GammaRegressor", link="log"
    ),
}
# The rules by which exact steps choose a penalty, by name.
PENALTY_RULES = {
    "auto": PenaltyRule("highest_score", "the one with the highest score on held-out rows"),
}

_FAMILIES = dict.fromkeys(
    ("Gaussian", "Laplacian", "Cauchy", "Matern", "ArcCosine", "Coordinates"), "dkl.features.families"
) | {"SphericalHarmonics": "dkl.features.harmonics", "SparseFrequencies": "dkl.features.sparse_frequencies"}
# What `MarginFeatures(family=[...])` may list beside families of waves.
DICTIONARIES = {
    "Steps": "dkl.features.dictionaries",
    "Landmarks": "dkl.methods.dictionaries.landmarks",
}
_META_KERNELS = dict.fromkeys(
    ("RBFMetaKernel", "MaternMetaKernel", "PolynomialMetaKernel", "SumMetaKernel", "DeltaMetaKernel"),
    "dkl.methods.density.meta_kernels",
)
_ESTIMATORS = {
    **{entry.name: entry.module for entry in LEARNERS},
    "CombinedFeatures": "dkl.methods.combined.learner",
    "TunedClassifier": "dkl.methods.density.learner",
    "TunedRegressor": "dkl.methods.density.learner",
    "KernelClassifier": "dkl.machines.kernel_machines",
    "KernelRegressor": "dkl.machines.kernel_machines",
}

# What `import dkl` hands out: each name with the module that it is imported from when it is first asked for.
PUBLIC = {
    "create_dataset": "dkl.data.create",
    "open_dataset": "dkl.data.dataset",
    "from_zarr": "dkl.data.dataset",
    "ingest": "dkl.data.ingest.ingest",
    "CsvFormat": "dkl.data.ingest.csv_files",
    "LibsvmFormat": "dkl.data.ingest.libsvm_files",
    "NpzFormat": "dkl.data.ingest.npz_files",
    "Dataset": "dkl.data.dataset",
    **_FAMILIES,
    **DICTIONARIES,
    **_META_KERNELS,
    "FeatureMap": "dkl.features.feature_map",
    **_ESTIMATORS,
    "BlockIncremental": "dkl.linear.incremental",
    "tune": "dkl.model_selection.tuning",
    "compare": "dkl.model_selection.comparison",
    "sweep": "dkl.model_selection.sweep",
    "plan": "dkl.planning",
    "forecast": "dkl.planning",
    "report": "dkl.reporting",
    "suggest": "dkl.suggestions",
    "drift": "dkl.uncertainty.drifting",
    "agree": "dkl.federated.agreement",
    "Agreement": "dkl.federated.agreement",
    "export_sums": "dkl.federated.exporting",
    "fit_from_sums": "dkl.federated.from_sums",
    "load_model": "dkl.model_io",
    "Predictor": "dkl.export.predictor",
    "Event": "dkl.events",
    "StopRequested": "dkl.events",
    "DklHint": "dkl.errors",
}

# The short names that a model file may hold, and where their classes live. A file never names a module: otherwise
# opening a strange file could run any code that is installed.
STORED = {
    **_ESTIMATORS,
    **_FAMILIES,
    **DICTIONARIES,
    "Dictionaries": "dkl.features.dictionaries",
    **_META_KERNELS,
    "FeatureMap": "dkl.features.feature_map",
    "DenseProjection": "dkl.features.projections",
    "ColumnProjection": "dkl.features.projections",
    "SparseProjection": "dkl.features.projections",
    "StructuredProjection": "dkl.features.projections",
    "LandmarkProjection": "dkl.features.landmark_projection",
    "SharedLandmarkProjection": "dkl.features.landmark_projection",
    "HarmonicProjection": "dkl.features.harmonic_projection",
    "NystromProjection": "dkl.features.nystrom_projection",
    "StepProjection": "dkl.features.step_projection",
    "CombinedProjection": "dkl.features.feature_map",
    "Scaler": "dkl.features.scaling",
    "TableEncoding": "dkl.data.ingest.encoding",
    "TextDirections": "dkl.data.columns.free_text",
    "WordDirections": "dkl.data.columns.free_text",
    "FittedEncoding": "dkl.encodings.fitted",
    "CoefficientPosterior": "dkl.uncertainty.posterior",
    "HeldOutScores": "dkl.uncertainty.order_statistics",
    "PassStats": "dkl.passes.session",
    "Provenance": "dkl.methods.provenance",
    "Agreement": "dkl.federated.agreement",
    "SiteSums": "dkl.federated.exporting",
    "Schema": "dkl.data.schema",
    "SGDClassifier": "sklearn.linear_model",
    "SGDRegressor": "sklearn.linear_model",
    "ArraySGDClassifier": "dkl.linear.array_sgd",
    "ArraySGDRegressor": "dkl.linear.array_sgd",
    "Ridge": "sklearn.linear_model",
    "LogisticRegression": "sklearn.linear_model",
    "LinearSVC": "sklearn.svm",
}


def learner_keys() -> list[str]:
    """The names of all learners, the plain one first."""
    return [entry.key for entry in LEARNERS]


def learner_entry(key: str) -> LearnerEntry:
    """The learner of a name.

    Raises
    ------
    KeyError
        If there is none of that name.
    """
    return {entry.key: entry for entry in LEARNERS}[key]


def learner_classes(entries: Iterable[LearnerEntry] = LEARNERS) -> dict[str, Any]:
    """The classes of learners by their names, all imported now."""
    return {entry.key: entry.learner_class for entry in entries}


def losses_for(task: str, solver: str = "") -> tuple[str, ...]:
    """The names of the losses that machines of a task offer: with any solver, or with "newton" or "sgd"."""
    offered = {name: entry.solvers.get(task, ()) for name, entry in LOSSES.items()}
    return tuple(name for name, solvers in offered.items() if (solver in solvers if solver else solvers))


def losses_with(parameter: str) -> tuple[str, ...]:
    """The names of the losses that depend on this parameter of machines, "epsilon" or "quantiles"."""
    return tuple(name for name, entry in LOSSES.items() if entry.parameter == parameter)

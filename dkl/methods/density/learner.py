"""TunedClassifier and TunedRegressor: the spectral density of a kernel, learned jointly with a linear model."""

from __future__ import annotations

from typing import ClassVar, Literal

from dkl.data.dataset import Dataset
from dkl.data.labels import TaskChoice
from dkl.methods.density.tuned_learner import TunedLearner
from dkl.methods.parameters import TUNED, TUNED_REGRESSOR, Constraints, estimator
from dkl.methods.predicting import ClassPredictions, NumberPredictions
from dkl.methods.validation import check_whole_labels


class TunedClassifier(ClassPredictions, TunedLearner):
    """A classifier with a learned kernel: random Fourier features with a learned density.

    Minimises, over the weights w of D cosine-sine pairs, an intercept b and the density u >= `density_floor` of the
    frequencies, the mean loss plus ``lam/2 sum_j |w_j|^2 / u_j + Lam/2 (u - c)' H (u - c)``, one class against the
    rest. The problem is convex. The model's kernel is ``k(x - y) = mean_j u_j cos(w_j.(x - y))``.

    Parameters
    ----------
    n_features : int
        The most output columns: each of the D frequencies has two.
    family : Family or None
        The reference kernel, whose frequencies are drawn; None is ``Gaussian()`` with the median bandwidth.
    reference_scale : float or None
        The bandwidth of the family; None keeps its own.
    loss : {"hinge", "squared_hinge", "squared_error"}
        The paper's problem is convex for every convex loss. Others (the log loss, epsilon-insensitive errors) are
        missing since the solver ends at a certified duality gap: they would need a sum of conjugates at scaled dual
        weights in each pass, and the log loss a Newton step with its own curvature; they would be rows of
        `dkl.methods.density.loss_table`.
    lam : float
        Strength of the penalty on the weights; search it, down to 1e-10 if targets have no noise.
    Lam : float
        Strength of the penalty on the density; search it from 1e-5 to 1. ``float("inf")`` gives plain random features.
    gamma : float
        Smoothing of the density; its scale is that of the meta-kernel's eigenvalues over D.
    meta_kernel : {"rbf", "matern", "polynomial", "delta"} or MetaKernel
        The kernel between frequencies that defines which densities are smooth; "delta" treats each separately.
    length_scale : float or None
        The length scale of a meta-kernel given by name, in units of frequencies; None is their median distance.
    density_floor : float
        The least density: 1 as in the paper's section 5.
    center : float
        The density without penalty: 1 is that of the reference kernel. 0 with ``meta_kernel="delta"`` and
        ``density_floor=0`` is Fourier kernel learning.
    shared_density : bool
        Whether all classes share one density.
    solver : {"full", "adam"}
        "full": to the optimum, by full gradients from block sums. "adam": minibatches, with one pass for each epoch
        (section 5).
    tol : float
        Only for "full": the relative duality gap at which the fit ends.
    max_passes : int
        Only for "full": the most passes over the rows. Where they end the solver above `tol`, a warning has the gap.
    epochs : int or None
        Only for "adam"; None is 10, and more on few rows.
    learning_rate : float
        Only for "adam": the initial learning rate.
    early_stopping : bool
        Only for "adam": stop when the held-out loss has not fallen for `patience` epochs; the best model is kept.
    validation_fraction : float
        Share of the rows held out for it.
    patience : int
    sums : path, URL or None
        Only for half squared error in float64: a folder that stores the sums of each block of a Dataset, so that
        `update` reads only changed blocks; all workers must be able to write to it. A block has up to 64 MiB, so there
        may be at most 4,094 columns.
    warm_start : bool
        Only for "full" with a hinge: `fit` starts from the model of the last fit, with the same frequencies, bandwidth
        and scaler; the optimum is the same.
    scaling : {None, "auto", "standard", "minmax", "unit", "quantile", "counts"}
        How columns are scaled first; "unit", as in the paper, divides rows by the largest norm.
    max_rows : int or None
        Use at most this many rows.
    class_weight : dict, "balanced" or None
    dtype : {"float64", "float32"}
        Of frequencies and features.
    device : {"auto", "cpu", "gpu", "mixed"}
    random_state : int, RandomState or None
    checkpoint : str or None
        Where the states of a fit are stored, so that an interrupted fit resumes to the same bits.
    progress : bool, callable or None
    memory_limit : int, str or None
        Bytes that a process may use; a fit that needs more is refused.

    Attributes
    ----------
    density_ : ndarray of shape (D,), or (K, D) with ``shared_density=False``
        u, the density of each frequency relative to the reference kernel's.
    feature_map_ : FeatureMap
        With the learned amplitudes sqrt(u_j / D): products of the features that `transform` returns are the learned
        kernel (with the mean density, if each class has its own).
    frequencies_ : ndarray of shape (D, d)
    coef_, intercept_ : ndarray of shape (K, n_features) and (K,)
        For these features; K is 1 for two classes.
    objective_, residual_, duality_gap_ : float
        The final objective, the largest violation of the optimality conditions, and an upper bound of the distance of
        the objective from its minimum.
    history_ : list of dict
        One line for each round or epoch.
    bounds_ : Bounds
        The eigenvalue bound of the penalty, and the schedules of its parameters, as in `bounds`.
    message_ : str
        Why the fit ended.
    classes_ : ndarray of shape (K,)
    family_, scaler_, seed_, n_features_in_, stats_
        As in `RandomFeatures`.

    References
    ----------
    Shilton, Gupta, Rana, Arun Kumar & Venkatesh 2022, "TRF: Learning kernels with tuned random features", (22).

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.density.learner import TunedClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = TunedClassifier(n_features=100, scaling="standard", random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = TUNED
    _task: ClassVar[TaskChoice] = "classification"

    def _check_targets(self, dataset: Dataset) -> None:
        if dataset.classes is not None:
            check_whole_labels(dataset.classes, "TunedRegressor")


@estimator
class TunedRegressor(NumberPredictions, TunedLearner):
    """A regressor with a learned kernel: random Fourier features with a learned density.

    The problem is that of `TunedClassifier` with half squared error, for standardised targets, one or several;
    predictions are in units of the targets. The full solver needs one pass.

    Parameters
    ----------
    n_features, family, reference_scale
        As in `TunedClassifier`.
    loss : {"squared_error"}
        Half the squared error, of targets in units of their standard deviation. Other losses, such as
        epsilon-insensitive errors, would be convex, too: see `TunedClassifier` for why they are missing.
    lam, Lam, gamma, meta_kernel, length_scale, density_floor, center, shared_density
        As in `TunedClassifier`; the density is shared by all targets, or there is one for each.
    solver, tol, max_passes, epochs, learning_rate, early_stopping, validation_fraction, patience, sums
        As in `TunedClassifier`.
    scaling, max_rows, dtype, device, random_state, checkpoint, progress, memory_limit
        As in `TunedClassifier`.

    Attributes
    ----------
    density_, feature_map_, frequencies_, coef_, intercept_, objective_, residual_, duality_gap_, history_, message_
        As in `TunedClassifier`, with K the number of targets; coefficients and intercepts are in units of the targets.
    target_units_ : ndarray of shape (2, t)
        The mean and deviation by which the targets of stored sums are standardised; with `sums` only.
    family_, scaler_, seed_, n_features_in_, stats_
        As in `RandomFeatures`.

    References
    ----------
    Shilton, Gupta, Rana, Arun Kumar & Venkatesh 2022, "TRF: Learning kernels with tuned random features", (22).

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dkl.methods.density.learner import TunedRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = TunedRegressor(n_features=100, lam=1e-2, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.4)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = TUNED_REGRESSOR
    _task: ClassVar[TaskChoice] = "regression"

    loss: Literal["squared_error"] = "squared_error"
    warm_start: ClassVar[bool] = False  # type: ignore[misc]
    class_weight: ClassVar[None] = None  # type: ignore[misc]

    def _has_one_target(self) -> bool:
        """Whether predictions have no second axis."""
        return len(self.coef_) == 1

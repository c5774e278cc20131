"""TunedClassifier and TunedRegressor: the kernel's spectral density and the machine on it, learned together."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from sklearn.utils import Tags

from dkl.data.labels import TaskChoice
from dkl.methods.density.tuned_learner import TunedLearner
from dkl.methods.parameters import TUNED_CLASSIFIER, TUNED_REGRESSOR, Constraints, estimator
from dkl.methods.predicting import ClassPredictions, NumberPredictions
from dkl.methods.validation import check_labels


class TunedClassifier(ClassPredictions, TunedLearner):
    """A classifier whose kernel is learned with it: random Fourier features with a density of their own.

    Minimises, over the weights w of D cosine-sine pairs, an intercept b and the density u >= `density_floor` of the
    frequencies, the mean loss plus ``lam/2 sum_j |w_j|^2 / u_j + Lam/2 (u - c)' H (u - c)``, one class against the
    rest. The problem is convex. The model's kernel is ``k(x - y) = mean_j u_j cos(w_j.(x - y))``.

    Parameters
    ----------
    n_features : int
        Output columns, an upper bound: each of the D frequencies takes two.
    family : Family or None
        Of the reference kernel, whose frequencies are drawn; None is ``Gaussian()`` with the median bandwidth.
    reference_scale : float or None
        The bandwidth of the family; None leaves it its own.
    scaling : {None, "auto", "standard", "minmax", "unit", "quantile", "counts"}
        How columns are scaled first; "unit", the paper's, divides rows by the largest norm.
    loss : {"hinge", "squared_hinge", "squared_error"}
        The paper's problem is convex for every convex loss. Others (the log loss, epsilon-insensitive errors) are not
        here because the solver ends at a certified duality gap: they need a sum of conjugates at scaled dual weights in
        each pass, and the log loss a Newton step of its own curvature; a row of `dkl.methods.density.loss_table` is
        where they would come in.
    lam : float
        Strength of the penalty on the weights; worth searching, down to 1e-10 where targets have no noise.
    Lam : float
        Strength of the penalty on the density, worth searching from 1e-5 to 1; ``float("inf")`` gives plain random
        features.
    gamma : float
        How much the density is smoothed; matters relative to the meta-kernel's eigenvalues over D.
    meta_kernel : {"rbf", "matern", "polynomial", "delta"} or MetaKernel
        The kernel between frequencies that says what densities are smooth; "delta" takes each by itself.
    length_scale : float or None
        Of a meta-kernel by name, in the units of frequencies; None is their median distance.
    density_floor : float
        The least density: 1 as in the paper's section 5.
    center : float
        The density without penalty: 1 is the reference kernel. 0 with ``meta_kernel="delta"`` and ``density_floor=0``
        is Fourier kernel learning.
    shared_density : bool
        One density for all classes, or one a class.
    solver : {"full", "adam"}
        "full": to the optimum, by full gradients on block sums. "adam": mini-batches, an epoch a pass (section 5).
    tol : float
        Of "full": the duality gap to stop at, relative to the objective.
    max_passes : int
        Of "full": over the rows, at most.
    epochs : int or None
        Of "adam"; None is 10, and more on few rows.
    learning_rate : float
        Of "adam", at first.
    early_stopping : bool
        Of "adam": stop when the loss of held-out rows has not fallen for `patience` epochs; the best model is kept.
    validation_fraction : float
        The share of the rows held out for it.
    patience : int
    sums : path, URL or None
        Of half squared error in float64: where to keep the sums of each block of a Dataset, so that `update` reads only
        blocks that changed; a folder that all workers reach. A block's take up to 64 MiB: for at most 4,094 columns.
    warm_start : bool
        Of "full" on a hinge: `fit` starts from the model of the last fit, whose frequencies, bandwidth and scaler stay;
        the optimum is the same.
    max_rows : int or None
        Fit on this many rows at most.
    class_weight : dict, "balanced" or None
    dtype : {"float64", "float32"}
        Of frequencies and features.
    device : {"auto", "cpu", "gpu", "mixed"}
    random_state : int, RandomState or None
    checkpoint : str or None
        Where states are kept, so that a broken-off fit resumes to the same bits.
    progress : bool, callable or None
    memory_limit : int, str or None
        Bytes a process may use; what cannot be kept is refused.

    Attributes
    ----------
    density_ : ndarray of shape (D,), or (K, D) with ``shared_density=False``
        u, the density of each frequency relative to the reference kernel's.
    feature_map_ : FeatureMap
        At the learned amplitudes sqrt(u_j / D): `transform` gives features whose products are the learned kernel (of
        the mean density, where each class has its own).
    frequencies_ : ndarray of shape (D, d)
    coef_, intercept_ : ndarray of shape (K, n_features) and (K,)
        On these features; K is 1 for two classes.
    objective_, residual_, duality_gap_ : float
        At the end: what was minimised, the largest violation of the optimality conditions, and how far above the
        minimum the objective is at most.
    history_ : list of dict
        One line a round or epoch.
    bounds_ : Bounds
        The eigenvalue bound of the penalty and the schedules of its parameters, as of `bounds`.
    message_ : str
        How it ended.
    classes_ : ndarray of shape (K,)
    family_, scaler_, seed_, n_features_in_, stats_
        As of `RandomFeatures`.

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

    _parameter_constraints: ClassVar[Constraints] = TUNED_CLASSIFIER
    _task: ClassVar[TaskChoice] = "classification"

    def _check_classes(self, classes: np.ndarray) -> None:
        """Keep the labels; numbers would be a regressor's."""
        check_labels(classes, "TunedRegressor")
        self.classes_ = classes


@estimator
class TunedRegressor(NumberPredictions, TunedLearner):
    """A regressor whose kernel is learned with it: random Fourier features with a density of their own.

    The problem is that of `TunedClassifier` with half squared error, on standardised targets, several at once; answers
    are in the targets' own units. The full solver needs one pass.

    Parameters
    ----------
    n_features, family, reference_scale, scaling
        As of `TunedClassifier`.
    loss : {"squared_error"}
        Others, such as epsilon-insensitive errors, are convex here too: see `TunedClassifier` for what they lack.
        Half the square, of targets in units of their deviation.
    lam, Lam, gamma, meta_kernel, length_scale, density_floor, center, shared_density
        As of `TunedClassifier`; the density is shared by all targets, or one a target.
    solver, tol, max_passes, epochs, learning_rate, early_stopping, validation_fraction, patience, sums, max_rows
        As of `TunedClassifier`.
    dtype, device, random_state, checkpoint, progress, memory_limit
        As of `TunedClassifier`.

    Attributes
    ----------
    density_, feature_map_, frequencies_, coef_, intercept_, objective_, residual_, duality_gap_, history_, message_
        As of `TunedClassifier`, K the number of targets; coefficients and intercepts in the targets' own units.
    target_units_ : ndarray of shape (2, t)
        The mean and deviation that the targets of kept sums are in; with `sums` only.
    family_, scaler_, seed_, n_features_in_, stats_
        As of `RandomFeatures`.

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

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _has_one_target(self) -> bool:
        """Whether predictions have no second axis."""
        return len(self.coef_) == 1

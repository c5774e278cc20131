"""TunedLearner: what the tuned classifier and the tuned regressor share, from parameters to the learned kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dkl.bounds.certificate import Bounds
from dkl.bounds.tuned import inverse_eigenvalue_bound, schedules
from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap
from dkl.methods.base import FeatureLearner
from dkl.methods.bounds_mixin import Certified
from dkl.methods.density.fit import History, check_penalty, fit_tuned, held_bytes, meta_spectrum_of, tuned_passes
from dkl.methods.density.solution import TunedSolution
from dkl.methods.parameters import check_parameters, family_of, kept_frequencies
from dkl.methods.prediction import Scorer
from dkl.methods.preparation.driver import PreparationDriver
from dkl.methods.preparation.learner import preparation_problem
from dkl.methods.room import check_room
from dkl.methods.updating import Updated
from dkl.methods.validation import map_to_features, one_dimensional
from dkl.methods.warm_start import goes_on


class TunedLearner(Updated, Certified, FeatureLearner):
    """Tuned random features (Shilton et al. 2022): a linear model on them is learned together with their density."""

    _supervised: ClassVar[bool] = True
    _parts: ClassVar[tuple[str, ...]] = ("family", "meta_kernel")
    _fitted_by: ClassVar[str] = "coef_"
    class_weight: Any = None
    warm_start: bool = False

    n_features: int
    reference_scale: float | None
    loss: str
    lam: float
    Lam: float
    gamma: float
    meta_kernel: Any
    length_scale: float | None
    density_floor: float
    center: float
    shared_density: bool
    solver: str
    tol: float
    max_passes: int
    epochs: int | None
    learning_rate: float
    early_stopping: bool
    validation_fraction: float
    patience: int

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None, times: Any = None) -> Self:
        """Learn the density of the frequencies and the linear model on them together.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
            Data frames are raw rows and are encoded; everything else holds encoded rows.
        y : array of shape (n,) or (n, t), or None
            Labels or targets; those of a Dataset are its own.
        sample_weight : array of shape (n,) or None
            Frequency weights: weight 2 is the row twice, weight 0 a row that is not there.
        groups : str, array of shape (n,), or None
            What each row belongs to: rows of one group are held out together, wherever the fit holds rows out. A name
            is a column of a data frame, which is then no feature.
        times : str, array of shape (n,), or None
            Numbers or dates: the newest rows are held out. A column of a data frame stays a feature where it holds
            numbers.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If a parameter or the rows have no meaning; before any pass.
        MemoryError
            If the frequencies are so many that the matrix of the meta-kernel would not fit.

        Warns
        -----
        UserWarning
            If `max_passes` end the solver before the gap is below `tol`; the message says where it stands.
        """
        return super().fit(X, one_dimensional(y), sample_weight, groups=groups, times=times)

    def kernel(self, X: Any, Y: Any = None) -> Any:
        """The learned kernel, mean_j u_j cos(w_j.(x - y)), between rows.

        Parameters
        ----------
        X, Y : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d) and (m, d)
            Y is X where it is None.

        Returns
        -------
        ndarray of shape (n, m), float64
            Lazy where X or Y is.
        """
        check_is_fitted(self, self._fitted_by)
        left = map_to_features(self, X, self.feature_map_, "float64")
        return left @ (left if Y is None else map_to_features(self, Y, self.feature_map_, "float64")).T

    def bounds(self, *, as_printed: bool = False) -> Bounds:
        """How little the penalty may resist a change of the density, and how the parameters may scale with n and D.

        Parameters
        ----------
        as_printed : bool
            The eigenvalue bound of the paper, which is looser.

        Returns
        -------
        Bounds
            A `dkl.bounds.Bound`, and a `dkl.bounds.Schedule` for losses that the theory covers.

        References
        ----------
        Shilton et al. 2022, section 4.3 and figure 2.
        """
        eigenvalues = meta_spectrum_of(self, self.feature_map_).values
        found = [inverse_eigenvalue_bound(eigenvalues, gamma=self.gamma, as_printed=as_printed)]
        if self.loss == "squared_hinge" or min(self.total_weight_, len(eigenvalues)) < 2:
            return Bounds(found)
        return Bounds([*found, schedules(self.total_weight_, len(eigenvalues), loss=self.loss)])

    def planned_passes(self, dataset: Dataset) -> list[tuple[Any, int]]:
        """The preparation, where it is needed, and the passes of the solver."""
        check_parameters(self)
        self._check_rest()
        preparation = preparation_problem(dataset, self._prior(), self.scaling, 0)
        passes = tuned_passes(self._unfitted(), dataset, self.planned_map(dataset))
        return [*PreparationDriver().plan(preparation), *passes]

    def planned_memory(self, dataset: Dataset) -> dict[str, int]:
        """Bytes that the solver holds at most beside the passes, item by item."""
        return held_bytes(self._unfitted(), dataset, self.planned_map(dataset))

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A map of as many features as `fit` learns, at the amplitudes of the reference kernel."""
        family = self._planned_family()
        check_room(self, kept_frequencies(type(self).__name__, self.n_features, family), dataset.n_columns)
        return self._reference(family, dataset.n_columns, seed=0)

    def _prior(self) -> Any:
        family = family_of(self)
        return family if self.reference_scale is None else family.with_bandwidth(self.reference_scale)

    def _reference(self, family: Any, n_columns: int, *, seed: int) -> FeatureMap:
        size = kept_frequencies(type(self).__name__, self.n_features, family)
        drawn = family.draw(size, n_columns, seed, self.dtype)
        return replace(drawn, amplitudes=np.full(size, 1.0 / np.sqrt(size)))

    def _check_rest(self) -> None:
        if self._planned_family().draw(1, 2, 0).activation != "cos-sin":
            raise ValueError(
                f"{type(self).__name__} learns the density of cosine-sine pairs, and {family_of(self)!r} has none; use "
                "a family such as Gaussian() with pairing='cos-sin'"
            )
        size = kept_frequencies(type(self).__name__, self.n_features, self._planned_family())
        check_penalty(self, size)
        self._check_sums(2 * size)
        if self.solver == "full" and self.early_stopping:
            raise ValueError(
                "solver='full' goes to the optimum, and early_stopping has no meaning; use solver='adam', or set "
                "early_stopping=False"
            )
        if self.warm_start and (self.loss == "squared_error" or self.solver == "adam"):
            raise ValueError(
                "warm_start=True starts the steps of solver='full' on a hinge; half squared error takes one pass, and "
                "none with sums= and update. Set warm_start=False"
            )

    def _without_sums(self) -> str:
        if self.solver == "adam":
            return "solver='adam' keeps none; fit all rows again"
        if self.loss != "squared_error":
            return (
                f"loss={self.loss!r} needs more than sums; fit all rows again, with warm_start=True from the last model"
            )
        return super()._without_sums()

    def _check_sums(self, n_columns: int) -> None:
        """Raise ValueError where sums are to be kept that the model does not depend on alone, or that are too large."""
        if self.sums is None:
            return
        if self.loss != "squared_error" or self.solver != "full" or self.dtype != "float64":
            raise ValueError(
                f"sums={str(self.sums)!r} keeps what half squared error depends on: it needs loss='squared_error', "
                f"solver='full' and dtype='float64', got {self.loss!r}, {self.solver!r} and {self.dtype!r}; for others "
                "leave sums out"
            )
        self._check_gram(n_columns, "n_features")

    def _learn(self, dataset: Dataset) -> None:
        start = self._start(dataset)
        if dataset.classes is not None:
            self._check_classes(np.asarray(dataset.classes))
        self.__dict__.pop("target_units_", None)
        if start is None:
            scaler = self._prepare(dataset)
            drawn = self._reference(self.family_, dataset.n_columns, seed=self.seed_)
            self.feature_map_ = replace(drawn, scaler=scaler)
        self._weigh(dataset, start)

    def _weigh(self, dataset: Dataset, start: Any = None) -> None:
        self.total_weight_ = dataset.total_weight
        size = self.feature_map_.n_frequencies
        fit_tuned(self, dataset, replace(self.feature_map_, amplitudes=np.full(size, 1.0 / np.sqrt(size))), start)

    def _start(self, dataset: Dataset) -> tuple[np.ndarray, np.ndarray] | None:
        """The model and the density of the last fit, with `warm_start`, on features at the reference's amplitudes."""
        names = ("n_features", "family", "reference_scale", "scaling", "dtype", "shared_density")
        if not goes_on(self, dataset, names):
            return None
        root = np.sqrt(np.atleast_2d(self.density_).mean(axis=0))
        models = np.concatenate([self.coef_ * np.tile(root, 2), self.intercept_[:, None]], axis=1)
        return models, np.atleast_2d(self.density_)

    def _check_classes(self, classes: np.ndarray) -> None:
        """Keep the labels, or raise ValueError where they are none."""

    def _keep(self, reference: FeatureMap, found: TunedSolution, history: History) -> None:
        """The model on the features at the learned amplitudes, where its coefficients are those of `transform`."""
        self.history_ = history
        self.density_ = found.density
        u = np.atleast_2d(found.density).mean(axis=0)
        root = np.sqrt(u)
        self.feature_map_ = replace(reference, amplitudes=root * reference.amplitudes)
        # a frequency without density has no weight either
        self.coef_ = found.coef * np.tile(np.divide(1.0, root, out=np.zeros_like(root), where=root > 0.0), 2)
        self.intercept_ = found.intercept
        self.objective_, self.residual_, self.duality_gap_ = found.objective, found.residual, found.gap
        self.message_ = found.message

    @property
    def _scorer(self) -> Scorer:
        return Scorer(self.feature_map_, self.coef_, self.intercept_, self.dtype)

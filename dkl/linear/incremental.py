"""BlockIncremental: any scikit-learn estimator with `partial_fit`, fitted block by block in bounded memory.

It has the interface of `dask_ml.wrappers.Incremental`, whose chain of tasks reads ahead without a bound, applies a
block twice when a task is retried, and starts over when a worker dies. Here a fold runs over the blocks: its steps are
pure functions of a state, and reading ahead is bounded. Import this module late, since it imports dask-ml, which takes
seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Self

import dask
import dask.array as da
import dask_ml.metrics
import numpy as np
from dask_ml.wrappers import Incremental
from scipy import sparse
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Tags, check_random_state, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from dkl.atomic import atomic, forget_fit
from dkl.data.checks import as_rows
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.frames import encoded_by, is_frame, is_raw, map_raw
from dkl.data.labels import TaskChoice
from dkl.data.other_frames import as_pandas_rows
from dkl.data.sources.lazy import as_dask_array, with_whole_rows
from dkl.documented import DocumentedMixin
from dkl.events import Subscriber
from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows
from dkl.kernels.threads import one_blas_thread
from dkl.linear.answers import answer_raw
from dkl.linear.epochs import EpochDriver, EpochProblem, EpochState, EstimatorState, estimator_step
from dkl.linear.minibatches import HeldOut, RowTargets
from dkl.passes.loop import Run
from dkl.progress import resolve_progress
from dkl.protocols.source import BlockSource


@dataclass(frozen=True, eq=False)
class _BlockAnswer:
    """A method of a fitted estimator as a function of one block, which is mapped first if there is a feature map.

    It uses one BLAS thread, since Dask calls it for many blocks at once, each on its own core.
    """

    estimator: BaseEstimator
    feature_map: FeatureMap | None
    method: str

    def __call__(self, rows: Any, first_row: int = 0) -> np.ndarray | sparse.sparray:
        with one_blas_thread():
            mapped = rows if self.feature_map is None else map_rows(as_rows(rows), self.feature_map)
            return getattr(self.estimator, self.method)(mapped)


def partial_fit_parameters(estimator: Any) -> tuple[set[str], bool]:
    """The parameter names of an estimator's `partial_fit`, and whether it accepts any other name.

    Reading the signature raises errors in this process, instead of a TypeError in a task on some worker.
    """
    parameters = inspect.signature(estimator.partial_fit).parameters
    return set(parameters), any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


def _estimator_has(method: str) -> Callable[[BlockIncremental], bool]:
    """A check for `available_if`: BlockIncremental has only those methods that its estimator has."""
    return lambda model: hasattr(getattr(model, "estimator_", model.estimator), method)


class BlockIncremental(DocumentedMixin, Incremental):
    """Fit any estimator that has `partial_fit` on the blocks of a Dataset or of Dask arrays, in bounded memory.

    The interface is that of `dask_ml.wrappers.Incremental`. Rows reach the estimator differently: each epoch visits the
    blocks in a random order, and cuts them into minibatches of at most 4,096 shuffled rows, which are mapped (where
    there is a feature map) in parallel, a few ahead of the estimator's steps. The result is the same to the bit on one
    thread, several processes or a cluster, and after the death of a worker. `KernelClassifier` and `KernelRegressor`
    use it for their stochastic linear models.

    Parameters
    ----------
    estimator : estimator
        With `partial_fit`: `SGDClassifier`, `MultinomialNB`, `MiniBatchKMeans`, `IncrementalPCA` or one of your own.
    scoring : str, callable or None
        The measure of `score`, as in dask-ml; None is accuracy for classifiers and R^2 for regressors.
    shuffle_blocks : bool
        Whether each epoch visits the blocks in a random order. The rows of a block are always shuffled.
    random_state : int, RandomState or None
        Determines the orders of blocks and rows; the estimator has its own `random_state`.
    assume_equal_chunks : bool
        Part of dask-ml's interface, without effect: unequal chunks of X and y are always aligned.
    predict_meta, predict_proba_meta, transform_meta : ndarray or None
        Arrays with the dtype, the dimensions and for two of them the number of columns of lazy results. None derives
        these from the estimator's result for a row of zeros.
    feature_map : FeatureMap or None
        The `feature_map_` of a learner, which maps rows before the estimator sees them, in `fit` and in `predict`.
    epochs : int
        How often `fit` goes through all rows.
    memory_limit : int, str or None
        Bytes that one process may use; a fit that needs more is refused before any row is read.
    progress : bool, callable or None
        As in the learners.

    Attributes
    ----------
    estimator_ : fitted estimator
        Fitted on mapped rows if there is a feature map. Its fitted attributes are also those of the BlockIncremental.
    n_features_in_ : int
        Columns of the rows, before they are mapped.
    encoding_ : TableEncoding, FittedEncoding or None
        The encoding of a data frame's columns, which `predict` repeats; target means of categories are those of the
        rows of the first fit.
    stats_ : list of PassStats
        Bytes, seconds and blocks of each epoch.

    See Also
    --------
    KernelClassifier : Learns the features, too, and averages the iterates of its linear model.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from sklearn.linear_model import SGDClassifier
    >>> import dkl
    >>> X = da.from_array(np.random.default_rng(0).normal(size=(2000, 3)), chunks=(500, 3))
    >>> y = (X[:, 0] > X[:, 1]).astype(int)
    >>> model = dkl.BlockIncremental(SGDClassifier(random_state=0), epochs=3, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    >>> model.predict(X).shape, model.classes_.tolist()
    ((2000,), [0, 1])

    Rows of a store, clustered:

    >>> from sklearn.cluster import MiniBatchKMeans
    >>> rows = dkl.create_dataset("memory://clusters.zarr", X.compute())
    >>> clusters = dkl.BlockIncremental(MiniBatchKMeans(4, random_state=0), random_state=0).fit(rows)
    >>> clusters.cluster_centers_.shape
    (4, 3)
    """

    def __init__(
        self,
        estimator: BaseEstimator | None = None,
        scoring: str | Callable[..., float] | None = None,
        shuffle_blocks: bool = True,
        random_state: int | np.random.RandomState | None = None,
        assume_equal_chunks: bool = True,
        *,
        predict_meta: np.ndarray | None = None,
        predict_proba_meta: np.ndarray | None = None,
        transform_meta: np.ndarray | None = None,
        feature_map: FeatureMap | None = None,
        epochs: int = 1,
        memory_limit: int | str | None = None,
        progress: bool | Subscriber | None = None,
    ) -> None:
        super().__init__(
            estimator=estimator,
            scoring=scoring,
            shuffle_blocks=shuffle_blocks,
            random_state=random_state,
            assume_equal_chunks=assume_equal_chunks,
            predict_meta=predict_meta,
            predict_proba_meta=predict_proba_meta,
            transform_meta=transform_meta,
        )
        self.feature_map = feature_map
        self.epochs = epochs
        self.memory_limit = memory_limit
        self.progress = progress

    def fit(self, X: object, y: object = None, **fit_options: Any) -> Self:
        """Fit a clone of the estimator to all rows, for `epochs` epochs.

        Parameters
        ----------
        X : Dataset, dask.array.Array, data frame, array or scipy sparse matrix of shape (n, d)
        y : array of shape (n,) or None
            Labels or targets; those of a Dataset are its own. Clusterings and transformers need none.
        **fit_options
            `sample_weight` of shape (n,), `classes` with all labels that may occur (by default those in y), and any
            other parameter of the estimator's `partial_fit`.

        Returns
        -------
        self

        Raises
        ------
        TypeError, ValueError
            If a parameter, the rows or the options do not suit the estimator; before any step.
        MemoryLimitError
            If the blocks in flight would not fit into `memory_limit`.
        """
        with atomic(self) as model:
            forget_fit(model)
            model._check_parameters()
            model._fit_from(clone(model.estimator), X, y, fit_options)
        return self

    def partial_fit(self, X: object, y: object = None, **fit_options: Any) -> Self:
        """Continue `estimator_` with further rows, or start if nothing is fitted yet; parameters as in `fit`.

        Raw rows are encoded as in the first call, including the target means of categories.
        """
        with atomic(self) as model:
            model._check_parameters()
            begun = getattr(model, "estimator_", None)
            model._fit_from(clone(model.estimator) if begun is None else begun, X, y, fit_options)
        return self

    @available_if(_estimator_has("predict"))
    def predict(self, X: object) -> Any:
        """The estimator's predictions, (n,) or (n, t).

        Parameters
        ----------
        X : Dataset, dask.array.Array, data frame, array or scipy sparse matrix of shape (n, d)

        Returns
        -------
        ndarray, or a lazy dask.array.Array for Dask collections and Datasets
        """
        return self._answer("predict", X, self.predict_meta)

    @available_if(_estimator_has("predict_proba"))
    def predict_proba(self, X: object) -> Any:
        """Probabilities of shape (n, K), in the order of `classes_`; lazy as in `predict`."""
        return self._answer("predict_proba", X, self.predict_proba_meta)

    @available_if(_estimator_has("predict_log_proba"))
    def predict_log_proba(self, X: object) -> Any:
        """Logarithms of the probabilities, of shape (n, K); lazy as in `predict`."""
        return self._answer("predict_log_proba", X, self.predict_proba_meta)

    @available_if(_estimator_has("decision_function"))
    def decision_function(self, X: object) -> Any:
        """Decision values of shape (n,) or (n, K); lazy as in `predict`."""
        return self._answer("decision_function", X, None)

    @available_if(_estimator_has("transform"))
    def transform(self, X: object) -> Any:
        """The transformed rows, of shape (n, m); lazy as in `predict`."""
        return self._answer("transform", X, self.transform_meta)

    def score(self, X: object, y: object = None, compute: bool = True) -> Any:
        """The score of the predictions, by `scoring`: accuracy of classifiers and R^2 of regressors by default.

        Parameters
        ----------
        X : Dataset, dask.array.Array, data frame, array or scipy sparse matrix of shape (n, d)
        y : array of shape (n,) or None
            Labels or targets; those of a Dataset are its own.
        compute : bool
            Whether to compute the score of Dask arrays now.

        Raises
        ------
        ValueError
            Without targets, or with y for a Dataset, which has its own.
        TypeError
            If the estimator has its own score method for rows in memory, and the rows are a Dask collection.
        """
        check_is_fitted(self, "estimator_")
        if isinstance(X, Dataset):
            if y is not None:
                raise ValueError("y was given beside a Dataset, whose own targets are used; pass the Dataset alone")
            # the arrays of a Dataset are lazy, so the score is computed block by block
            return self.score(self._encoded_rows(X).X, X.y, compute)
        has_targets = is_classifier(self.estimator_) or is_regressor(self.estimator_)
        if has_targets and y is None:
            raise ValueError(f"score compares the predictions of {self.estimator_!r} with y, which is None; pass y")
        # a scoring by name is dask-ml's, or scikit-learn's for arrays in memory
        if self.scoring is not None:
            return super().score(X, y, compute)
        if not has_targets:
            if dask.is_dask_collection(X):
                raise TypeError(
                    f"{type(self.estimator_).__name__} has a score of its own, which takes rows in memory; set "
                    "scoring=, or pass some of the rows as an array"
                )
            return _BlockAnswer(self.estimator_, self.feature_map, "score")(self._encoded_rows(X))
        predicted = self.predict(X)
        lazy = dask.is_dask_collection(predicted) or dask.is_dask_collection(y)
        # scikit-learn scores rows in memory
        if not lazy:
            return float((accuracy_score if is_classifier(self.estimator_) else r2_score)(y, predicted))
        targets: Any = as_dask_array(y, "y") if dask.is_dask_collection(y) else da.from_array(np.asarray(y), chunks=-1)
        targets = targets.rechunk((predicted.chunks[0], *targets.chunks[1:]))
        if is_classifier(self.estimator_):
            return dask_ml.metrics.accuracy_score(targets, predicted, compute=compute)
        # dask-ml's r2_score fails on the arrays of today's Dask
        error = ((targets - predicted) ** 2).sum(axis=0)
        deviation = ((targets - targets.mean(axis=0)) ** 2).sum(axis=0)
        explained = 1.0 - error / da.where(deviation > 0.0, deviation, 1.0)
        # the R^2 of a constant target is 1 or 0, as in scikit-learn
        score = da.where(deviation > 0.0, explained, error == 0.0).mean()
        return float(score.compute()) if compute else score

    def fit_epochs(
        self,
        problem: EpochProblem,
        source: BlockSource,
        run: Run,
        model: Callable[[EpochState], Any] | None = None,
    ) -> EpochState:
        """Run all epochs and return the last state; `stats_` gets the statistics of each pass.

        Parameters
        ----------
        problem : EpochProblem
        source : BlockSource
        run : Run
        model : callable or None
            As in `dkl.passes.loop.Run.drive`.
        """
        state, self.stats_ = run.drive(EpochDriver(), problem, source, model=model)
        return state

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        if self.estimator is not None:
            # cross-validation asks for the type, to stratify folds by class
            inner = get_tags(self.estimator)
            tags.estimator_type, tags.target_tags = inner.estimator_type, inner.target_tags
            tags.classifier_tags, tags.regressor_tags = inner.classifier_tags, inner.regressor_tags
            tags.transformer_tags, tags.input_tags = inner.transformer_tags, inner.input_tags
        return tags

    def _check_parameters(self) -> None:
        """Raise an error that names the wrong parameter, before any row is read."""
        # a class in place of an instance has partial_fit, too, but would fail in the first step on a worker
        if isinstance(self.estimator, type) or not hasattr(self.estimator, "partial_fit"):
            raise TypeError(
                "The 'estimator' parameter of BlockIncremental must be an estimator with partial_fit, such as "
                f"SGDClassifier(), which learns block by block. Got {self.estimator!r} instead"
            )
        if not isinstance(self.epochs, Integral) or isinstance(self.epochs, bool) or self.epochs < 1:
            raise ValueError(
                f"The 'epochs' parameter of BlockIncremental must be an int >= 1. Got {self.epochs!r} instead"
            )
        if self.feature_map is not None and not isinstance(self.feature_map, FeatureMap):
            raise TypeError(
                "The 'feature_map' parameter of BlockIncremental must be a FeatureMap, such as the feature_map_ of a "
                f"fitted learner, or None. Got {self.feature_map!r} instead"
            )

    def _fit_from(self, estimator: BaseEstimator, X: object, y: object, fit_options: dict[str, Any]) -> None:
        """Fit an estimator, new or fitted, to all rows for all epochs."""
        goes_on = estimator is getattr(self, "estimator_", None)
        X = self._encoded_rows(X) if goes_on and not dask.is_dask_collection(X) else X
        dataset, options = self._rows_and_options(estimator, X, y, fit_options)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        dataset = self._with_category_numbers(dataset, seed, goes_on)
        source = dataset.source
        problem = EpochProblem(
            step=estimator_step,
            step_operands={"fit_options": options},
            first=EstimatorState(estimator),
            feature_map=self.feature_map,
            targets=RowTargets(dataset.classes),
            n_blocks=source.n_blocks,
            epochs=int(self.epochs),
            seed=seed,
            shuffle_blocks=self.shuffle_blocks,
            # the mean bytes of a row of the largest block, rounded up; minibatches of wide rows have fewer rows
            row_bytes=-(-source.block_nbytes // max(int(np.max(source.block_rows)), 1)),
        )
        run = Run(publish=resolve_progress(self.progress), memory_limit=self.memory_limit)
        state = self.fit_epochs(problem, source, run)
        fitted = state.model["estimator"]
        # as in dask-ml the wrapper has the fitted attributes, too, but its columns are those before the map
        own = {"n_features_in_", "feature_names_in_"}
        learned = {name: value for name, value in vars(fitted).items() if name.endswith("_") and name not in own}
        if not goes_on:
            learned |= {"n_features_in_": dataset.n_columns, "encoding_": dataset.encoding}
        self.__dict__.update(learned, estimator_=fitted)

    def _with_category_numbers(self, dataset: Dataset, seed: int, goes_on: bool) -> Dataset:
        """The rows of a fit with target means for codes of categories, checked for the estimator's columns.

        Raises
        ------
        ValueError
            For codes with a feature map, which was learned on other numbers, or for another number of columns.
        """
        if not goes_on and dataset.schema.has_codes:
            if self.feature_map is not None:
                raise ValueError(
                    "columns of X hold codes of categories, and the numbers that BlockIncremental makes of them are "
                    "not those that feature_map was learned on; leave feature_map out, or fit the features and the "
                    "linear model together: KernelClassifier(features=...) or KernelRegressor(features=...)"
                )
            from dkl.encodings.categories import with_categories

            # no rows are held out here, so all rows contribute to the target means
            run = Run(publish=resolve_progress(self.progress), memory_limit=self.memory_limit)
            dataset = with_categories(dataset, HeldOut(0.0, seed), run)
        expected = dataset.n_columns if self.feature_map is None else self.feature_map.n_columns
        if goes_on:
            expected = self.n_features_in_
        if dataset.n_columns != expected:
            raise ValueError(
                f"X has {dataset.n_columns} features, but BlockIncremental is expecting {expected} features as input"
            )
        return dataset

    def _rows_and_options(
        self, estimator: BaseEstimator, X: object, y: object, fit_options: dict[str, Any]
    ) -> tuple[Dataset, dict[str, Any]]:
        """The rows as a Dataset, and the keyword arguments of `partial_fit`, for classifiers with all classes."""
        name, (accepted, takes_all) = type(estimator).__name__, partial_fit_parameters(estimator)
        options = dict(fit_options)
        weight, classes = options.pop("sample_weight", None), options.pop("classes", None)
        # further rows may lack some classes of an estimator that is partly fitted
        first_classes = getattr(estimator, "classes_", None)
        # numbers are labels for a classifier and targets for a regressor
        task: TaskChoice = "auto"
        if is_classifier(estimator) or is_regressor(estimator):
            task = "classification" if is_classifier(estimator) else "regression"
        classes = first_classes if classes is None else classes
        # the codes and columns of a Dask frame are those that the first call learned, not new ones of these rows
        goes_on = estimator is getattr(self, "estimator_", None)
        encoding = self.encoding_ if goes_on and dask.is_dask_collection(X) and is_frame(X) else None
        dataset = as_dataset(X, y, weight, task=task, classes=classes, encoding=encoding)
        if task != "auto" and dataset.task is None:
            raise ValueError(f"{name} learns from targets, and y is None; pass y, or a Dataset that has a target")
        if dataset.source.has_weight and not (takes_all or "sample_weight" in accepted):
            raise ValueError(
                f"these rows have weights, and {name}.partial_fit takes no sample_weight; leave the weights out"
            )
        if classes is not None and dataset.classes is not None:
            # a Dataset has codes for its own classes, which a step turns into labels; each must be among the
            # estimator's
            strange = np.setdiff1d(dataset.classes, np.asarray(classes))
            if len(strange):
                raise ValueError(
                    f"{dataset!r} has the label {strange[0].item()!r}, which is not among the classes "
                    f"{np.asarray(classes).tolist()}; name all labels by classes= in the first fit"
                )
        if is_classifier(estimator) and (takes_all or "classes" in accepted):
            options["classes"] = dataset.classes if classes is None else np.asarray(classes)
        unknown = [] if takes_all else sorted(set(options) - set(accepted))
        if unknown:
            raise TypeError(f"{name}.partial_fit takes no {unknown[0]!r}; it takes {sorted(accepted)}")
        return dataset, options

    def _encoded_rows(self, X: object) -> Any:
        """The rows encoded as those of `fit`: data frames, and the codes of a Dataset."""
        from dkl.encodings.categories import rows_like_fit

        X = as_pandas_rows(X)
        if isinstance(X, Dataset):
            return rows_like_fit(getattr(self, "encoding_", None), X)
        # a frame is encoded by the rules of the fit, so that it has the columns of the estimator
        encoding = getattr(self, "encoding_", None)
        if dask.is_dask_collection(X):
            return encoded_by(encoding, X) if encoding is not None and is_raw(encoding, X) else as_dask_array(X, "X")
        return encoded_by(encoding, X) if encoding is not None and is_raw(encoding, X) else X

    def _answer(self, method: str, X: object, meta: np.ndarray | None) -> Any:
        """The result of an estimator's method: at once for rows in memory, lazily by blocks for Dask collections."""
        check_is_fitted(self, "estimator_")
        answer, encoding = _BlockAnswer(self.estimator_, self.feature_map, method), getattr(self, "encoding_", None)
        if dask.is_dask_collection(X) and is_frame(X) and encoding is not None:
            example = answer(np.zeros((1, encoding.n_columns), encoding.dtype)) if meta is None else meta
            if not sparse.issparse(example):
                width, raw = None if example.ndim == 1 else example.shape[1], (answer, encoding)
                return map_raw(answer_raw, raw, X, width, example.dtype, strict=None, counts=True)
        rows = self._encoded_rows(X)
        rows = rows.X if isinstance(rows, Dataset) else rows
        if len(np.shape(rows)) == 2 and np.shape(rows)[1] != self.n_features_in_:
            raise ValueError(
                f"X has {np.shape(rows)[1]} features, but BlockIncremental is expecting {self.n_features_in_} features "
                "as input"
            )
        if not isinstance(rows, da.Array):
            return answer(rows)
        # the estimator needs whole rows, so chunks of columns are joined
        rows = with_whole_rows(rows)
        # the result for a row of zeros gives dtype and columns before any block is computed
        example = answer(np.zeros((1, rows.shape[1]), rows.dtype)) if meta is None else meta
        if example.ndim == 1:
            return da.map_blocks(answer, rows, drop_axis=1, dtype=example.dtype, meta=example[:0])
        chunks = (rows.chunks[0], (example.shape[1],))
        return da.map_blocks(answer, rows, chunks=chunks, dtype=example.dtype, meta=example[:0])

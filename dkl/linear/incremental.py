"""BlockIncremental: dask-ml's Incremental with its chain of tasks replaced by a fold over the blocks.

dask-ml's own chain reads ahead without a bound, applies a block twice when a task is retried, and starts over when a
worker dies. A fold's steps are pure and its reading is bounded. Import this module late: dask-ml takes seconds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
from dask_ml._utils import copy_learned_attributes
from dask_ml.wrappers import Incremental
from sklearn.base import is_classifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import check_random_state

from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.labels import TaskChoice
from dkl.events import Subscriber, ignore
from dkl.features.feature_map import FeatureMap
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.device import rows_on
from dkl.kernels.maps import map_rows
from dkl.linear.epochs import EpochDriver, EpochProblem, EpochState
from dkl.linear.minibatches import Minibatch, RowTargets
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.loop import run_driver
from dkl.protocols.source import BlockSource


@dataclass(frozen=True, eq=False)
class EstimatorState:
    """Any estimator with `partial_fit`, under way."""

    estimator: Any


def estimator_step(state: EstimatorState, minibatch: Minibatch, operands: Mapping[str, Any]) -> EstimatorState:
    """The state after `partial_fit` of a copy on a minibatch.

    Operands: "fit_options" (further keywords of `partial_fit`).
    """
    estimator = copy.deepcopy(state.estimator)
    weight = {} if minibatch.weight is None else {"sample_weight": minibatch.weight}
    estimator.partial_fit(rows_on(minibatch.phi, "cpu"), minibatch.y, **weight, **operands["fit_options"])
    return EstimatorState(estimator)


class BlockIncremental(Incremental):
    """Fit any estimator that has `partial_fit` on the blocks of a Dask array or a Dataset, in bounded memory.

    The interface is that of `dask_ml.wrappers.Incremental`; what differs is how blocks reach the estimator: mapped and
    shuffled in parallel a few ahead, stepped through one after the other on copies, so that retries are harmless.

    Parameters
    ----------
    estimator, scoring, shuffle_blocks, random_state, assume_equal_chunks, predict_meta, predict_proba_meta, \
transform_meta
        As in dask-ml.
    feature_map : FeatureMap or None
        Maps rows before the estimator sees them, in `fit` and in `predict`.
    epochs : int
        Times that all rows are gone through.
    memory_limit : int, str or None
        Bytes that one process may hold.

    Attributes
    ----------
    estimator_ : fitted estimator
        On mapped rows where there is a feature map.

    Examples
    --------
    >>> import dask.array as da, numpy as np
    >>> from sklearn.linear_model import SGDClassifier
    >>> from dkl.linear.incremental import BlockIncremental
    >>> X = da.from_array(np.random.default_rng(0).normal(size=(200, 3)), chunks=(50, 3))
    >>> model = BlockIncremental(SGDClassifier(random_state=0), epochs=2).fit(X, X[:, 0] > 0)
    >>> model.predict(X).shape
    (200,)
    """

    def __init__(
        self,
        estimator: Any = None,
        scoring: Any = None,
        shuffle_blocks: bool = True,
        random_state: Any = None,
        assume_equal_chunks: bool = True,
        *,
        predict_meta: Any = None,
        predict_proba_meta: Any = None,
        transform_meta: Any = None,
        feature_map: FeatureMap | None = None,
        epochs: int = 1,
        memory_limit: int | str | None = None,
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

    @property
    def _postfit_estimator(self) -> Any:
        estimator = super()._postfit_estimator
        if self.feature_map is not None:
            mapping = FunctionTransformer(map_rows, kw_args={"feature_map": self.feature_map}, accept_sparse=True)
            estimator = make_pipeline(mapping, estimator)
        return _in_one_blas_thread(estimator)

    def decision_function(self, X: Any) -> Any:
        """Decision values of shape (n,) or (n, K); lazy for a Dask array."""
        model = self._postfit_estimator
        if not isinstance(X, da.Array):
            return model.decision_function(X)
        one = model.decision_function(np.zeros((1, X.shape[1]), X.dtype))
        if one.ndim == 1:
            return da.map_blocks(model.decision_function, X, drop_axis=1, dtype=one.dtype, meta=one[:0])
        chunks = (X.chunks[0], (one.shape[1],))
        return da.map_blocks(model.decision_function, X, chunks=chunks, dtype=one.dtype, meta=one[:0])

    def fit_epochs(
        self,
        problem: EpochProblem,
        source: BlockSource,
        *,
        publish: Subscriber = ignore,
        checkpoint: Checkpoint | None = None,
        fingerprint: str = "",
        device: Any = "cpu",
        model: Callable[[EpochState], Any] | None = None,
    ) -> EpochState:
        """The state at the end of all epochs; `stats_` says what each pass over the rows did.

        Parameters
        ----------
        problem : EpochProblem
        source : BlockSource
        publish, checkpoint, fingerprint, device, model
            As in `dkl.passes.loop.run_driver`.
        """
        state, self.stats_ = run_driver(
            EpochDriver(),
            problem,
            source,
            publish=publish,
            checkpoint=checkpoint,
            fingerprint=fingerprint,
            memory_limit=self.memory_limit,
            device=device,
            model=model,
        )
        return state

    def _fit_for_estimator(self, estimator: Any, X: Any, y: Any, **fit_options: Any) -> BlockIncremental:
        dataset, fit_options = _rows_and_options(estimator, X, y, fit_options)
        problem = EpochProblem(
            step=estimator_step,
            step_operands={"fit_options": fit_options},
            first=EstimatorState(estimator),
            feature_map=self.feature_map,
            targets=RowTargets(dataset.classes),
            n_blocks=dataset.source.n_blocks,
            epochs=self.epochs,
            seed=int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max)),
            shuffle_blocks=self.shuffle_blocks,
        )
        state = self.fit_epochs(problem, dataset.source)
        self.estimator_ = state.model["estimator"]
        copy_learned_attributes(self.estimator_, self)
        return self


@dataclass(frozen=True, eq=False)
class _Held:
    """A method of an estimator, with one BLAS thread while it runs."""

    method: Callable[..., Any]

    def __call__(self, *args: Any, **named: Any) -> Any:
        with one_blas_thread():
            return self.method(*args, **named)


def _in_one_blas_thread(estimator: Any) -> Any:
    """A copy whose answers take one BLAS thread: dask-ml asks for them in many tasks at once."""
    held = copy.copy(estimator)
    for name in ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform"):
        if hasattr(estimator, name):
            setattr(held, name, _Held(getattr(estimator, name)))
    return held


def _rows_and_options(estimator: Any, X: Any, y: Any, fit_options: dict[str, Any]) -> tuple[Dataset, dict[str, Any]]:
    """The rows as a Dataset, and what `partial_fit` is told beside them: all classes, always."""
    options = dict(fit_options)
    classes, weight = options.pop("classes", None), options.pop("sample_weight", None)
    task: TaskChoice = "classification" if is_classifier(estimator) else "regression"
    if classes is None and hasattr(estimator, "classes_"):
        classes = estimator.classes_
    dataset = as_dataset(X, y, weight, task="auto" if isinstance(X, Dataset) else task, classes=classes)
    if dataset.classes is not None:
        options["classes"] = dataset.classes
    return dataset, options

"""Split conformal prediction: intervals and sets of classes whose coverage follows from scores of held-out rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar, Self

import dask.array as da
import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from dkl.data.checks import checked_weight
from dkl.data.dataset import Dataset
from dkl.data.exposure import (
    exposure_for_scores,
    exposure_of_fit,
    exposures_by_block,
    exposures_of,
    rows_with_exposure,
)
from dkl.data.frames import column_named, weights_of
from dkl.data.other_frames import as_pandas_rows
from dkl.data.together.choosing import with_values
from dkl.data.together.rows import held_rows
from dkl.data.view import RowsByKey, RowsChosen, View
from dkl.errors import warn_user
from dkl.linear.answers import Scorer, probabilities
from dkl.linear.fitting import LinearProblem, Run
from dkl.linear.minibatches import HeldOut
from dkl.linear.scores import scoring_cost
from dkl.methods.offered import offered_unless
from dkl.methods.predicting import blockwise, score_rows, with_row_id
from dkl.methods.scoring import check_log_rows
from dkl.passes.loop import map_blocks
from dkl.protocols.records import BlockSum, Record
from dkl.solvers.losses import LOG_LINK, PROBABLE
from dkl.uncertainty.conformal_groups import check_groups, column_of, places_of, row_codes, with_stored_groups
from dkl.uncertainty.interval_scores import (
    ClassScore,
    DevianceScore,
    ErrorScore,
    IntervalScore,
    QuantileScore,
    by_target,
    conformal_scores,
    ends_of,
)
from dkl.uncertainty.order_statistics import HeldOutScores, least_rows
from dkl.uncertainty.posterior import CoefficientPosterior

# The most scores that are kept: with more, the coverage would change by less than .0006 on average.
_MOST_SCORES = 1 << 18
_PASS = "conformal scores"
# Changes the seed of the rows held out for scores, so that they are independent of those held out for the penalty and
# the temperature.
_SALT = 0x434F_4E46


class ConformalMixin:
    """The part of machines that computes and stores scores of held-out rows: `conformalize`, `conformal_fraction`."""

    conformal_fraction: float | None
    seed_: int
    conformal_: HeldOutScores
    _fitted_by: ClassVar[str]
    _settings: Any
    _rows: Callable[[object, object, object], Dataset]
    _running: Callable[[str], Run]

    def _check_exposure(self) -> None:
        """Raise ValueError if the loss has no exposure."""
        loss = self._settings.loss
        if loss not in LOG_LINK:
            raise ValueError(
                f"exposure was given, and loss={loss!r} has none: it belongs to loss='poisson' and "
                "'gamma'; leave it out"
            )

    def conformalize(
        self,
        X: object,
        y: object = None,
        sample_weight: object = None,
        *,
        groups: object = None,
        exposure: object = None,
    ) -> Self:
        """Store the scores of the model on rows that `fit` has not seen, from which intervals and sets follow.

        The coverage holds only if these rows have the distribution of the rows to be predicted, and were not used in
        the fit. Of more than 262,144 rows a sample by a hash is scored.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        y : array of shape (n,) or (n, t), or None
            Labels or targets; None if X is a Dataset, which has its own.
        sample_weight : str, array of shape (n,), or None
            Frequency weights, or their column of a data frame: weight 2 is the row twice. If predictions get
            `sample_weight`, too, both are ratios of densities.
        groups : str, array of shape (n,), or None
            With groups the coverage holds for each group by itself. A name is a column of a data frame or of a Dataset,
            where it stays a feature, or the group column of a Dataset.
        exposure : str, array of shape (n,), or None
            For ``loss="poisson"`` and "gamma" the exposure of the targets, as in `fit`; None is the column of the fit.

        Returns
        -------
        self

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If the rows do not suit those of `fit`, or a group has fewer than two of them.
        """
        check_is_fitted(self, self._fitted_by)
        X = as_pandas_rows(X)
        groups, sample_weight = column_of(X, groups), weights_of(X, sample_weight)
        if exposure is not None:
            self._check_exposure()
        exposure, column = exposure_for_scores(self, X, exposure), ""
        if isinstance(groups, str) and isinstance(X, Dataset):
            X, column = with_stored_groups(X, groups)
        dataset = rows_with_exposure(self, X, y, sample_weight, exposure)
        if groups is not None and not column:
            kept = None if sample_weight is None else np.asarray(sample_weight).ravel() != 0.0
            source, schema = with_values(dataset.source, dataset.schema, "group", groups, None, kept)
            dataset, column = dataset.with_rows(source, schema), schema.row_columns["group"].column
        return self._conformalized(dataset, column, exposed=exposure is not None)

    def conformalize_held_out(self, rows: Dataset, *, groups: str | None = None) -> Self:
        """Store the scores of the rows that `fit` has held out by `conformal_fraction` again, now by group.

        Parameters
        ----------
        rows : Dataset
            The Dataset of the fit; its held-out rows follow from their identities and `seed_`.
        groups : str or None
            As in `conformalize`.

        Returns
        -------
        self

        Raises
        ------
        NotFittedError
            Before `fit`.
        ValueError
            If `fit` has held out no rows, `rows` is no Dataset, or a group has fewer than two rows.
        """
        check_is_fitted(self, self._fitted_by)
        if self.conformal_fraction is None or not isinstance(rows, Dataset):
            raise ValueError(
                "conformalize_held_out needs the Dataset of a fit with conformal_fraction, which says what share of "
                "its rows was held out; hold rows out yourself, and call conformalize(X, y, groups=...)"
            )
        column = ""
        if groups is not None:
            rows, column = with_stored_groups(rows, groups)
        # an unfitted clone reads the rows as the fit did, without changing this machine
        model: Any = clone(self)  # type: ignore[type-var]
        model.seed_ = self.seed_
        exposure = exposure_of_fit(self)
        _, held_out = model._without_conformal_rows(model._checked_rows(rows, None, exposure=exposure))
        return self._conformalized(self._rows(held_out, None, None), column, exposed=exposure is not None)

    def _conformalized(self, dataset: Dataset, column: str, *, exposed: bool) -> Self:
        """Compute and store the scores of encoded rows.

        Parameters
        ----------
        dataset : Dataset
        column : str
            The row column with the codes of groups; empty without groups.
        exposed : bool
            Whether there is a row column of exposures.
        """
        scorer, score = self._answering()
        if isinstance(score, DevianceScore):
            check_log_rows(dataset, score.loss, of_fit=False)
        dataset = dataset.thin(_MOST_SCORES, getattr(self, "seed_", 0))
        codes = None
        if column:
            codes = row_codes(dataset, column)
            check_groups(codes, dataset)
        operands = {"scorer": scorer, "score": score, "exposure": exposures_by_block(dataset) if exposed else None}
        run = self._running("")
        blocks = map_blocks(
            dataset.source,
            conformal_scores,
            operands,
            name=_PASS,
            cost=scorer.cost,
            publish=run.publish,
            memory_limit=run.memory_limit,
        )
        scored = [part for _, part in blocks]
        scores, weight = (np.concatenate([part[name] for part in scored]) for name in ("scores", "weight"))
        weights = weight if dataset.source.has_weight else None
        self.conformal_ = HeldOutScores.of_rows(scores, weights, codes, scaled=score.scaled)
        return self

    def _answering(self) -> tuple[Scorer, IntervalScore | ClassScore]:
        """The scorer that predicts, and the conformal score of its predictions; subclasses define them."""
        raise TypeError(f"{type(self).__name__} predicts neither numbers nor classes")

    def _scored(self, scorer: Scorer, X: object, strict: bool) -> Any:
        """The predictions of a scorer for rows of any kind; lazy for Dask collections and Datasets."""
        model: Any = self
        return score_rows(model, scorer, X, strict=strict)

    def _without_conformal_rows(self, dataset: Dataset) -> tuple[Dataset, Dataset | None]:
        """The rows of the fit, and the rows held out for scores (None without `conformal_fraction`).

        Raises
        ------
        ValueError
            If fewer than two rows would be held out, or left to fit on.
        """
        if self.conformal_fraction is None:
            return dataset, None
        held_out = HeldOut(self.conformal_fraction, self.seed_ ^ _SALT)
        # for each block the numbers of kept and of held-out rows, without reading X
        masks = (held_out.mask(block.held_with) for block in dataset.source.blocks_without_x())
        counts = np.array([(np.sum(~mask), np.sum(mask)) for mask in masks])
        n_out, n_rows = int(counts[:, 1].sum()), dataset.n_rows
        if n_out < 2 or n_rows - n_out < 2:
            raise ValueError(
                f"conformal_fraction={self.conformal_fraction:g} of {n_rows:,} rows holds out {n_out}, and leaves "
                f"{n_rows - n_out} to fit on; use another share, or more rows"
            )
        sides = []
        for out in (False, True):
            rows, n_classes = counts[:, int(out)], dataset.schema.n_classes
            identity = f"conformal {held_out.share} {held_out.seed} {out}"
            side = RowsByKey(identity, held_out.mask if out else held_out.rest)
            source = View(dataset.source, RowsChosen(side, rows), n_classes=n_classes)
            sides.append(Dataset(source, dataset.schema, store=dataset.store, name=dataset.name))
        # the places of the remaining rows are computed again: with times, the newest of them; with groups, fewer groups
        return held_rows(sides[0]), sides[1]

    def _score_conformal_rows(self, held_out: Dataset | None) -> None:
        """Compute and store the scores of the rows that `_without_conformal_rows` has kept out of the fit."""
        if held_out is not None:
            exposed = hasattr(self, "exposure_")
            self._conformalized(self._rows(held_out, None, None), "", exposed=exposed)

    def _planned_scores(self, problem: LinearProblem) -> list[tuple[list[Record], int]]:
        """The pass over the rows held out for scores, for a plan.

        It is no replay, since which rows these are is known only once their hashes or times have been read.
        """
        if self.conformal_fraction is None:
            return []
        cost = partial(
            scoring_cost,
            feature_map=problem.feature_map,
            n_models=problem.n_models,
            share=self.conformal_fraction,
            dtype=problem.dtype,
        )
        return [([BlockSum(_PASS, conformal_scores, {}, cost=cost)], 1)]

    def _kept_scores(self, coverage: float) -> HeldOutScores:
        """The stored scores, after checking the coverage; ValueError if there are none."""
        check_is_fitted(self, self._fitted_by)
        if isinstance(coverage, bool) or not isinstance(coverage, Real) or not 0.0 < float(coverage) < 1.0:
            raise ValueError(f"coverage is {coverage!r}; expected a share between 0 and 1, both excluded, such as 0.9")
        kept: HeldOutScores | None = getattr(self, "conformal_", None)
        if kept is None:
            raise ValueError(
                f"this {type(self).__name__} has no scores of held-out rows, which a coverage is promised by: call "
                "conformalize(X, y) with rows that fit has not seen, or fit with conformal_fraction=0.1"
            )
        return kept

    def _radii(self, X: object, coverage: float, groups: object, sample_weight: object) -> np.ndarray:
        """The score at which intervals have the coverage: (t,) for all rows, or (n, t) for each row."""
        kept = self._kept_scores(coverage)
        if (kept.groups is None) != (groups is None):
            given = "were given, and conformalize had none" if kept.groups is None else "are missing: one value a row"
            raise ValueError(
                f"groups {given}; give both conformalize and {type(self).__name__}'s predictions groups, or neither"
            )
        place = None if groups is None else places_of(X, column_of(X, groups), np.asarray(kept.groups))
        if sample_weight is not None:
            given_weight: Any = np.asarray(sample_weight)
            own = np.asarray(checked_weight(given_weight, given_weight.size))
            place = np.zeros(len(own), np.int64) if place is None else place
            if len(own) != len(place):
                raise ValueError(f"sample_weight has {len(own)} values and groups {len(place)}; expected one a row")
            radii = kept.weighted_quantiles(float(coverage), own, place)
        else:
            table = kept.quantiles(float(coverage))
            radii = table[0] if place is None else table[place]
        if np.isinf(radii).any():
            needed = f"a group takes at least {least_rows(coverage)} rows"
            if sample_weight is not None:
                needed = "the weights of some rows are large compared with those of all held-out rows"
            warn_user(
                f"so few held-out rows, {np.diff(kept.starts).min()} in the smallest group, cannot promise a coverage "
                f"of {coverage:g}: intervals are infinite and sets have all classes there, since {needed}; "
                "conformalize with more rows, or choose a smaller coverage"
            )
        return radii


class ConformalIntervals(ConformalMixin):
    """The method `predict_interval` of regressors."""

    posterior_: CoefficientPosterior
    _has_one_target: Callable[[], bool]
    _scorer: Any

    def predict_interval(
        self,
        X: object,
        coverage: float = 0.9,
        *,
        groups: object = None,
        sample_weight: object = None,
        exposure: object = None,
        strict: bool = False,
    ) -> Any:
        """Intervals that contain at least this share of new targets, for any model: split conformal prediction.

        The errors on held-out rows (`conformalize`, or ``conformal_fraction=0.1`` in the fit) set the width: the
        interval is the prediction plus and minus the ceil((n + 1) coverage)-th smallest of n held-out errors, in units
        of the predicted deviation if an exact fit has one. For ``loss="pinball"`` the lowest and the highest quantile
        are moved apart (or together) by this order statistic of how far targets lie outside of them. For "poisson" and
        "gamma" it is the order statistic of deviance residuals, and the interval contains all targets with no larger
        residual. The coverage holds for rows with the distribution of the held-out ones, on average over all of them;
        it does not hold for every kind of row, unless the rows of that kind are a group.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        coverage : float
            Above 0 and below 1.
        groups : str, array of shape (n,), or None
            The group of each row, if `conformalize` had groups.
        sample_weight : str, array of shape (n,), or None
            For rows of another distribution than the held-out ones: the ratio of the two densities at each row, in the
            units of the weights of `conformalize`, or its column of a data frame.
        exposure : str, array of shape (n,), or None
            As in `predict`, for ``loss="poisson"`` and "gamma": intervals are for the count over this exposure.
        strict : bool
            Raise an error for raw rows that are unlike those of `fit`, instead of a warning.

        Returns
        -------
        ndarray of shape (n, 2), or (n, t, 2) for several targets
            Lower and upper ends. Lazy as `predict` is; for a Dataset a lazy Dask DataFrame with the columns lower and
            upper (lower_0, upper_0, ... for several targets) that is indexed by row id.

        Raises
        ------
        ValueError
            For a coverage outside (0, 1), no stored scores, a group that `conformalize` has not seen, or an exposure
            for another loss.

        Warns
        -----
        UserWarning
            If there are too few held-out rows for this coverage, so that intervals are infinite.

        References
        ----------
        Lei, G'Sell, Rinaldo, Tibshirani & Wasserman 2018, Distribution-free predictive inference for regression;
        Romano, Patterson & Candes 2019, Conformalized quantile regression.

        Examples
        --------
        >>> import numpy as np
        >>> from dkl.machines.kernel_machines import KernelRegressor
        >>> X = np.random.default_rng(0).normal(size=(400, 2))
        >>> y = X[:, 0] + np.random.default_rng(1).normal(size=400)
        >>> model = KernelRegressor("random", solver="newton", random_state=0).fit(X[:200], y[:200])
        >>> ends = model.conformalize(X[200:300], y[200:300]).predict_interval(X[300:], coverage=0.9)
        >>> ends.shape, bool(np.mean((ends[:, 0] <= y[300:]) & (y[300:] <= ends[:, 1])) > 0.8)
        ((100, 2), True)
        """
        X, sample_weight = without_weights(X, sample_weight)
        radii = self._radii(X, coverage, groups, sample_weight)
        scorer, score = self._answering()
        answers = self._scored(scorer, X, strict)
        if exposure is not None:
            self._check_exposure()
            # the logarithm of the mean count is the score plus the logarithm of the exposure
            answers = answers + np.log(exposures_of(answers, X, exposure))
        n_targets = score.n_targets(len(scorer.coef))
        ends = _with_radii(partial(ends_of, score), answers, radii, columns=2 * n_targets, dtype=np.float64)
        if n_targets == 1 and (len(scorer.coef) > 1 or self._has_one_target()):
            return with_row_id(ends, X, ["lower", "upper"])
        if isinstance(X, Dataset):
            return with_row_id(ends, X, [f"{end}_{t}" for t in range(n_targets) for end in ("lower", "upper")])
        if not isinstance(ends, da.Array):
            return ends.reshape(len(ends), n_targets, 2)
        chunks, empty = (ends.chunks[0], (n_targets,), (2,)), np.empty((0, 0, 0))
        return da.map_blocks(
            partial(by_target, n_targets), ends, dtype=np.float64, chunks=chunks, new_axis=2, meta=empty
        )

    def _answering(self) -> tuple[Scorer, IntervalScore]:
        """The scorer that predicts, and the conformal score of its predictions."""
        score = self._interval_score()
        return replace(self._scorer, posterior=score.posterior if isinstance(score, ErrorScore) else None), score

    def _interval_score(self) -> IntervalScore:
        """The conformal score of the model's loss.

        Raises
        ------
        ValueError
            For a single quantile.
        """
        model: Any = self
        loss = model._settings.loss
        if loss in LOG_LINK:
            return DevianceScore(loss)
        if loss == "pinball":
            if len(model.quantiles) < 2:
                raise ValueError(
                    f"an interval lies between two quantiles, and quantiles={tuple(model.quantiles)} is one; fit "
                    "loss='pinball' with quantiles=(0.05, 0.95), say"
                )
            return QuantileScore(len(model.quantiles))
        posterior = getattr(self, "posterior_", None)
        # a fit without noise has deviations of 0, by which errors cannot be divided
        return ErrorScore(None if posterior is None or not np.all(posterior.noise > 0.0) else posterior)


def without_weights(X: Any, sample_weight: Any) -> tuple[Any, Any]:
    """The rows without the column that `sample_weight` names, which is no feature, and the values of the weights."""
    if not isinstance(sample_weight, str):
        return X, sample_weight
    X = as_pandas_rows(X)
    weights = column_named(X, sample_weight, "sample_weight")
    return X.drop(columns=[sample_weight]), weights


def no_probabilities(model: Any) -> str | None:
    """Why a classifier has no probabilities, with the remedy; None if it has."""
    settings = model._settings
    # once fitted, its temperature decides: a model of an older version may have none
    is_fitted = hasattr(model, "linear_")
    by_penalty = hasattr(model, "temperature_") if is_fitted else model._calibrates_while_judging(settings)
    if settings.calibrate or settings.loss in PROBABLE or by_penalty:
        return None
    return (
        f"loss={settings.loss!r} has no probabilities of its own; fit with calibrate=True, which finds them on "
        "held-out rows, or with loss='log_loss'"
    )


class ConformalSets(ConformalMixin):
    """The method `predict_set` of classifiers."""

    classes_: np.ndarray
    temperature_: float
    _settings: Any
    _scorer: Any

    @property
    def _multiplier(self) -> float | None:
        """The factor on scores in the softmax of probabilities; None for the log loss, whose scores are log odds."""
        if hasattr(self, "temperature_"):
            return 1.0 / self.temperature_
        # Newton steps on the log loss fit all classes jointly: probabilities are the softmax of the scores.
        solver, loss = self._settings.solver, self._settings.loss
        is_joint = (solver == "newton" and loss == "log_loss") or loss == "softmax"
        return 1.0 if is_joint and len(self.classes_) > 2 else None

    @offered_unless(no_probabilities)
    def predict_set(
        self,
        X: object,
        coverage: float = 0.9,
        *,
        groups: object = None,
        sample_weight: object = None,
        strict: bool = False,
    ) -> Any:
        """Sets of classes that contain at least this share of new labels, for any model: split conformal prediction.

        A class is in the set of a row if one minus its probability is at most the ceil((n + 1) coverage)-th smallest
        of one minus the probability of the true class on n held-out rows. A set is empty if no class of the row is
        likely enough. The method needs `predict_proba`. For the conditions of the coverage see
        `KernelRegressor.predict_interval`.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        coverage : float
            Above 0 and below 1.
        groups : str, array of shape (n,), or None
            The group of each row, if `conformalize` had groups.
        sample_weight : str, array of shape (n,), or None
            Ratios of densities, or their column of a data frame, as in `KernelRegressor.predict_interval`.
        strict : bool
            Raise an error for raw rows that are unlike those of `fit`, instead of a warning.

        Returns
        -------
        ndarray of shape (n, K), bool
            Columns in the order of `classes_`. Lazy as `predict` is; for a Dataset a DataFrame indexed by row id, whose
            columns are the labels.

        Raises
        ------
        ValueError
            For a coverage outside (0, 1), no stored scores, or a group that `conformalize` has not seen.

        References
        ----------
        Sadinle, Lei & Wasserman 2019, Least ambiguous set-valued classifiers with bounded error levels.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from dkl.machines.kernel_machines import KernelClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> model = KernelClassifier("random", loss="log_loss", conformal_fraction=0.3, random_state=0).fit(X, y)
        >>> model.predict_set(X, coverage=0.9).shape
        (150, 3)
        """
        X, sample_weight = without_weights(X, sample_weight)
        radii = self._radii(X, coverage, groups, sample_weight)
        scorer, score = self._answering()
        answers = self._scored(scorer, X, strict)
        sets = _with_radii(score.members, answers, radii, columns=len(self.classes_), dtype=np.bool_)
        return with_row_id(sets, X, self.classes_)

    def _answering(self) -> tuple[Scorer, ClassScore]:
        """The scorer that predicts, and the conformal score of its predictions."""
        if not hasattr(self, "predict_proba"):
            raise ValueError(
                f"sets of classes come from probabilities, and {type(self).__name__}(loss={self._settings.loss!r}) has "
                "none; fit with calibrate=True, or loss='log_loss'"
            )
        return self._scorer, ClassScore(partial(probabilities, multiplier=self._multiplier))


def _with_radii(
    function: Callable[..., np.ndarray],
    answers: Any,
    radii: np.ndarray,
    *,
    columns: int,
    dtype: Any,
) -> Any:
    """`function(answers, radii)` at once for an array, block by block for a Dask array.

    Raises
    ------
    ValueError
        If there are radii for another number of rows, or the chunks have unknown numbers of rows.
    """
    n_rows = answers.shape[0]
    if radii.ndim == 1:
        return blockwise(partial(function, radii=radii), answers, dtype=dtype, columns=columns)
    if np.isnan(n_rows):
        raise ValueError(
            "groups and weights need one value for each row, and the partitions of this Dask frame have unknown "
            "numbers of rows; give single data frames, or a Dataset"
        )
    if len(radii) != n_rows:
        raise ValueError(
            f"groups or sample_weight have {len(radii)} values, and X has {n_rows} rows; expected one a row"
        )
    if not isinstance(answers, da.Array):
        return function(answers, radii)
    rows = da.from_array(radii, chunks=(answers.chunks[0], -1))
    chunks, empty = (answers.chunks[0], (columns,)), np.empty((0, 0), dtype)
    return da.map_blocks(function, answers, rows, dtype=dtype, chunks=chunks, meta=empty)

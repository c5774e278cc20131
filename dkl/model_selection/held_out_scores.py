"""Metrics of a fitted model on held-out rows, with standard errors and a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from dkl.data.dataset import Dataset
from dkl.data.exposure import EXPOSURE, exposure_of_fit, with_exposure_of_fit
from dkl.data.other_task import with_task
from dkl.data.schema import Task
from dkl.linear.answers import check_log_targets, score_block
from dkl.methods.provenance import Provenance
from dkl.methods.validation import checked_dataset
from dkl.passes.loop import map_blocks
from dkl.protocols.estimators import FittedModel
from dkl.solvers.losses import LOG_LINK, PinballLoss

CLASS_METRICS = ("accuracy", "balanced_accuracy", "log_loss", "roc_auc")
NUMBER_METRICS = ("rmse", "mae", "r2")
# Further metrics of models that predict a mean exp(f), whose loss is half a deviance.
DEVIANCE_METRICS = ("deviance", "d2")
# The metrics of models of quantiles, which predict no single number for a target.
QUANTILE_METRICS = ("pinball", "d2")
# The metrics of which smaller values are better.
LOSSES = frozenset({"log_loss", "rmse", "mae", "deviance", "pinball"})
# Smaller probabilities are raised to this in the log loss, as by scikit-learn's `log_loss`, since 0 would make it
# infinite.
_LEAST = np.finfo(np.float64).eps
# The number of bins of the predicted probability in a calibration.
_BINS = 10


@dataclass(frozen=True)
class Metric:
    """One metric on held-out rows.

    Parameters
    ----------
    name : str
        scikit-learn's name: accuracy, balanced_accuracy, log_loss, roc_auc; rmse, mae, r2; deviance, pinball, d2.
    value : float
    standard_error : float
        The standard error for independent rows by the delta method: the root mean square of the rows' influences on the
        value, divided by the square root of the number of rows.
    baseline : float or None
        The metric of a prediction that uses no column: the shares of the classes in the rows of the fit, or the mean of
        their targets; None if the model does not store these.
    """

    name: str
    value: float
    standard_error: float
    baseline: float | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval, value +- 1.96 standard errors, cut at the bounds of the metric."""
        low, high = self.value - 1.96 * self.standard_error, self.value + 1.96 * self.standard_error
        # R^2 and D^2 have no lower bound, and losses have no upper one.
        return low if self.name in ("r2", "d2") else max(low, 0.0), high if self.name in LOSSES else min(high, 1.0)

    def __str__(self) -> str:
        baseline = "" if self.baseline is None else f" (baseline {self.baseline:.4g})"
        return f"{self.name} {self.value:.4g} ± {self.standard_error:.2g}{baseline}"


@dataclass(frozen=True, eq=False)
class ClassAnswers:
    """The predictions of a classifier for n rows, with their true labels.

    Parameters
    ----------
    labels : ndarray of shape (L,)
        The union of the labels of the rows and of the model, sorted.
    truth, answers : ndarray of shape (n,), int64
        Positions in `labels`.
    weights : ndarray of shape (n,)
        Frequency weights.
    shares : ndarray of shape (n, L) or None
        The predicted probability of each label; None if the model has none.
    known : ndarray of shape (L,) or None
        The weight of each label in the rows of the fit; None if the model does not store it.
    """

    labels: np.ndarray
    truth: np.ndarray
    answers: np.ndarray
    weights: np.ndarray
    shares: np.ndarray | None = None
    known: np.ndarray | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that can be computed; "roc_auc" also needs at least two classes among the rows."""
        return tuple(name for name in CLASS_METRICS if self.shares is not None or name not in ("log_loss", "roc_auc"))

    @property
    def errors(self) -> dict[str, Any]:
        """A description of the errors as JSON values: the confusion matrix, and the calibration."""
        confusion = {
            str(label): dict(zip(map(str, self.labels), counts, strict=True))
            for label, counts in zip(self.labels, self.confusion.tolist(), strict=True)
        }
        names = ("predicted", "observed", "rows")
        bins = [dict(zip(names, map(float, values), strict=True)) for values in self.calibration()]
        return {"confusion": confusion, "calibration": bins}

    @property
    def confusion(self) -> np.ndarray:
        """The confusion matrix (L, L): the weight of rows by true label (first axis) and predicted label (second)."""
        n = len(self.labels)
        return np.bincount(self.truth * n + self.answers, self.weights, minlength=n * n).reshape(n, n)

    def metric(self, name: str) -> Metric:
        """One of `metrics`.

        Raises
        ------
        ValueError
            If the metric is not defined for these rows or this model.
        """
        if name in ("log_loss", "roc_auc") and self.shares is None:
            raise ValueError(
                f"{name} needs probabilities, which the model does not have; fit it with calibrate=True, or with "
                "loss='log_loss'"
            )
        compute = {
            "accuracy": self._accuracy,
            "balanced_accuracy": self._balanced_accuracy,
            "log_loss": self._log_loss,
            "roc_auc": self._roc_auc,
        }.get(name)
        if compute is None:
            raise ValueError(f"{name!r} is no metric of classes; expected one of {', '.join(CLASS_METRICS)}")
        value, influences, baseline = compute()
        return Metric(name, value, _standard_error(influences, self.weights), baseline)

    def calibration(self) -> list[tuple[float, float, float]]:
        """Mean predicted probability, observed share and weight of rows, in ten bins of the predicted probability.

        For two classes the probability is that of the second one; for more classes it is that of the predicted label.
        """
        if self.shares is None:
            return []
        if self.shares.shape[1] == 2:
            predicted, right = self.shares[:, 1], self.truth == 1
        else:
            predicted, right = self.shares[np.arange(len(self.truth)), self.answers], self.truth == self.answers
        bins = np.minimum((predicted * _BINS).astype(int), _BINS - 1)
        weight, chance, hits = (
            np.bincount(bins, self.weights * values, minlength=_BINS) for values in (1.0, predicted, right)
        )
        return [(chance[b] / weight[b], hits[b] / weight[b], weight[b]) for b in np.flatnonzero(weight)]

    def _accuracy(self) -> tuple[float, np.ndarray, float | None]:
        right = (self.truth == self.answers).astype(np.float64)
        value = float(np.average(right, weights=self.weights))
        guess = None if self.known is None else self.truth == int(np.argmax(self.known))
        return value, right - value, None if guess is None else float(np.average(guess, weights=self.weights))

    def _balanced_accuracy(self) -> tuple[float, np.ndarray, float | None]:
        """The mean of the classes' recalls, the influence of each row on it, (n,), and the baseline."""
        of_label = np.bincount(self.truth, self.weights, minlength=len(self.labels))
        there = of_label > 0.0
        right = (self.truth == self.answers).astype(np.float64)
        hits = np.bincount(self.truth, self.weights * right, minlength=len(self.labels))
        recalls = np.where(there, hits / np.where(there, of_label, 1.0), 0.0)
        value = float(recalls[there].mean())
        share = of_label[self.truth] / self.weights.sum()
        return value, (right - recalls[self.truth]) / (share * there.sum()), 1.0 / int(there.sum())

    def _log_loss(self) -> tuple[float, np.ndarray, float | None]:
        shares = np.asarray(self.shares)
        losses = -np.log(np.maximum(shares[np.arange(len(self.truth)), self.truth], _LEAST))
        value = float(np.average(losses, weights=self.weights))
        baseline = None
        if self.known is not None:
            known = np.maximum(self.known / self.known.sum(), _LEAST)
            baseline = float(np.average(-np.log(known[self.truth]), weights=self.weights))
        return value, losses - value, baseline

    def _roc_auc(self) -> tuple[float, np.ndarray, float | None]:
        """The mean over classes of the area under the curve of one class against the others; influences; baseline.

        The area is the probability that a row of the class has a larger predicted probability of it than another row.
        """
        shares = np.asarray(self.shares)
        there = np.unique(self.truth)
        if len(there) < 2:
            raise ValueError("roc_auc needs rows of two classes at least; all of these have one label")
        # For two classes both curves have the same area.
        judged = [1] if shares.shape[1] == 2 else there.tolist()
        total, influences = 0.0, np.zeros(len(self.truth))
        for label in judged:
            # For a positive row the share of negatives with a lower score, for a negative one that of positives with
            # a higher score; ties count half.
            positive = self.truth == label
            ranks = np.unique(shares[:, label], return_inverse=True)[1]
            by_rank = [np.bincount(ranks, self.weights * side, int(ranks.max()) + 1) for side in (~positive, positive)]
            below = [np.cumsum(weight) - 0.5 * weight for weight in by_rank]
            of_negatives, of_positives = (part[ranks] / own.sum() for part, own in zip(below, by_rank, strict=True))
            above = np.where(positive, of_negatives, 1.0 - of_positives)
            value = float(np.average(above[positive], weights=self.weights[positive]))
            share = self.weights[positive].sum() / self.weights.sum()
            influences += (above - value) / np.where(positive, share, 1.0 - share) / len(judged)
            total += value / len(judged)
        return total, influences, 0.5


@dataclass(frozen=True, eq=False)
class NumberAnswers:
    """The predictions of a regressor for n rows, with their true targets.

    Parameters
    ----------
    truth, answers : ndarray of shape (n,) or (n, t)
    weights : ndarray of shape (n,)
        Frequency weights.
    known : ndarray of shape (t,) or None
        The mean of each target in the rows of the fit; None if the model does not store it.
    loss : str or None
        "poisson" or "gamma" if the model was fitted with that loss, else None.
    exposure : ndarray of shape (n,) or None
        The exposure of each row (such as years) in the unit of counts; None is 1 for all rows.
    """

    truth: np.ndarray
    answers: np.ndarray
    weights: np.ndarray
    known: np.ndarray | None = None
    loss: str | None = None
    exposure: np.ndarray | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics that can be computed; for counts and sizes also the deviance, which the fit has minimised."""
        return NUMBER_METRICS if self.loss is None else (*DEVIANCE_METRICS, *NUMBER_METRICS)

    @property
    def errors(self) -> dict[str, Any]:
        """A description of the errors as JSON values: quantiles of their absolute values."""
        errors = np.abs(self.truth - self.answers).ravel()
        return {f"{share:.0%} of the errors are below": float(np.quantile(errors, share)) for share in (0.5, 0.9, 0.99)}

    def metric(self, name: str) -> Metric:
        """One of `metrics`; for several targets the mean over them.

        Raises
        ------
        ValueError
            For an unknown name, or a deviance of a model whose loss has none.
        """
        if name in DEVIANCE_METRICS:
            return self._of_deviance(name)
        compute = {"rmse": self._rmse, "mae": self._mae, "r2": self._r_squared}.get(name)
        if compute is None:
            expected = ", ".join((*NUMBER_METRICS, *DEVIANCE_METRICS))
            raise ValueError(f"{name!r} is no metric of numbers; expected one of {expected}")
        pair = self.truth, self.answers
        truth, answers = (np.asarray(values, np.float64).reshape(len(values), -1) for values in pair)
        values, influences = compute(truth, answers)
        baseline = None
        if self.known is not None:
            baseline = float(compute(truth, np.broadcast_to(self.known, truth.shape))[0].mean())
        return Metric(name, float(values.mean()), _standard_error(influences.mean(axis=1), self.weights), baseline)

    def _of_deviance(self, name: str) -> Metric:
        """The mean deviance for a unit of exposure, or D^2, 1 minus its ratio to that of the best constant rate."""
        if self.loss is None:
            raise ValueError(
                f"{name} is of counts and sizes: fit them with loss='poisson' or loss='gamma'; expected one of "
                f"{', '.join(NUMBER_METRICS)}"
            )
        table, exposure = LOG_LINK[self.loss], np.ones(len(self.truth)) if self.exposure is None else self.exposure
        rates, means = (
            np.reshape(values, (len(exposure), -1)) / exposure[:, None] for values in (self.truth, self.answers)
        )
        check_log_targets(rates, self.loss)
        # a count over an exposure of two units has the weight of two counts over one unit
        units = exposure if table.counts_exposure else np.ones(len(exposure))
        weights = self.weights * units
        constant = np.broadcast_to(np.average(rates, axis=0, weights=weights), rates.shape)
        own, guessed = (2.0 * table.value(rates, np.log(mean)) for mean in (means, constant))
        deviance, without = (np.average(lost, axis=0, weights=weights) for lost in (own, guessed))
        share = (units / np.average(units, weights=self.weights))[:, None]
        if name == "deviance":
            influences = (share * (own - deviance)).mean(axis=1)
            error = _standard_error(influences, self.weights)
            return Metric(name, float(deviance.mean()), error, float(without.mean()))
        # at the best constant rate the deviance is stationary, so that errors of this rate have no influence
        total = float(without.mean())
        left = float(deviance.mean()) / total if total > 0.0 else float(deviance.mean() > 0.0)
        influences = (share * (left * guessed - own)).mean(axis=1) / (total if total > 0.0 else np.inf)
        return Metric(name, 1.0 - left, _standard_error(influences, self.weights), 0.0)

    def _rmse(self, truth: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The root of the mean squared error of each target, (t,), and each row's influence on it, (n, t)."""
        squares = (truth - answers) ** 2
        mean = np.average(squares, axis=0, weights=self.weights)
        root = np.sqrt(mean)
        # The derivative of the root is 1 / (2 root); where all errors are 0 influences are set to 0.
        return root, (squares - mean) / np.where(root > 0.0, 2.0 * root, np.inf)

    def _mae(self, truth: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean absolute error of each target, (t,), and each row's influence on it, (n, t)."""
        errors = np.abs(truth - answers)
        mean = np.average(errors, axis=0, weights=self.weights)
        return mean, errors - mean

    def _r_squared(self, truth: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """1 - (mean squared error) / (variance) of each target, (t,), and each row's influence on it, (n, t)."""
        squares = (truth - answers) ** 2
        deviations = (truth - np.average(truth, axis=0, weights=self.weights)) ** 2
        error, variance = (np.average(values, axis=0, weights=self.weights) for values in (squares, deviations))
        # For a constant target R^2 is 1 without an error, else 0, as in scikit-learn.
        constant = variance == 0.0
        unexplained = np.where(constant, error > 0.0, error / np.where(constant, 1.0, variance))
        influences = (unexplained * deviations - squares) / np.where(constant, np.inf, variance)
        return 1.0 - unexplained, influences


@dataclass(frozen=True, eq=False)
class QuantileAnswers:
    """The predicted quantiles of a regressor for n rows, with their true targets.

    Parameters
    ----------
    truth : ndarray of shape (n,) or (n, t)
    answers : ndarray of shape (n, t Q)
        The Q predicted quantiles of the first target, then those of the next, and so on.
    weights : ndarray of shape (n,)
        Frequency weights.
    quantiles : tuple of float
        The Q quantile levels, the same for all targets.
    """

    truth: np.ndarray
    answers: np.ndarray
    weights: np.ndarray
    quantiles: tuple[float, ...]

    @property
    def metrics(self) -> tuple[str, ...]:
        """ "pinball", the mean pinball loss over the quantiles, and "d2", 1 minus its ratio to that of constants."""
        return QUANTILE_METRICS

    @property
    def each(self) -> tuple[QuantileAnswers, ...]:
        """The answers of each target alone."""
        truths = self.truth.reshape(len(self.truth), -1).T
        parts = np.split(self.answers, len(truths), axis=1)
        return tuple(replace(self, truth=y, answers=part) for y, part in zip(truths, parts, strict=True))

    @property
    def shares_below(self) -> np.ndarray:
        """The share of rows whose target is at most each predicted quantile, (t Q,); ideally the quantile level."""
        shares = [np.average(one.truth[:, None] <= one.answers, axis=0, weights=self.weights) for one in self.each]
        return np.concatenate(shares)

    @property
    def errors(self) -> dict[str, Any]:
        """A description of the errors as JSON values: the share of targets at most each predicted quantile."""
        names = [f"share of targets at most quantile {q:g}" for q in self.quantiles]
        if len(self.each) > 1:
            names = [f"{name} of target {t}" for t in range(len(self.each)) for name in names]
        return dict(zip(names, map(float, self.shares_below), strict=True))

    def metric(self, name: str) -> Metric:
        """One of `metrics`; the mean over the quantiles and targets.

        Raises
        ------
        ValueError
            For an unknown name.
        """
        if name not in QUANTILE_METRICS:
            raise ValueError(f"{name!r} is no metric of quantiles; expected one of {', '.join(QUANTILE_METRICS)}")
        values, baselines, influences = zip(*(one._of_quantiles(name) for one in self.each), strict=True)
        error = _standard_error(np.mean(influences, axis=0), self.weights)
        return Metric(name, float(np.mean(values)), error, float(np.mean(baselines)))

    def _of_quantiles(self, name: str) -> tuple[float, float, np.ndarray]:
        """For one target: a metric, its baseline (that of the best constants), and the influence of each row, (n,)."""
        table = PinballLoss(np.array(self.quantiles))
        own = table.value(self.truth[:, None], self.answers)
        order = np.argsort(self.truth, kind="stable")
        reached = np.cumsum(self.weights[order])
        # at the best constants, quantiles of the targets, the loss is stationary: their errors have no influence
        places = np.searchsorted(reached, np.array(self.quantiles) * reached[-1])
        guessed = table.value(self.truth[:, None], self.truth[order][places])
        lost, without = (np.average(losses, axis=0, weights=self.weights) for losses in (own, guessed))
        if name == "pinball":
            return float(lost.mean()), float(without.mean()), (own - lost).mean(axis=1)
        total = np.where(without > 0.0, without, np.inf)
        left = np.where(without > 0.0, lost / total, lost > 0.0)
        return float(1.0 - left.mean()), 0.0, ((left * guessed - own) / total).mean(axis=1)


# The predictions of a fitted model, with the true targets.
Answers: TypeAlias = ClassAnswers | NumberAnswers | QuantileAnswers


def _standard_error(influences: np.ndarray, weights: np.ndarray) -> float:
    """sqrt(mean influence^2 / n), where n is the sum of the frequency weights."""
    return float(np.sqrt(np.average(influences**2, weights=weights) / weights.sum()))


def held_out_answers(
    model: FittedModel, dataset: Dataset, *, exposure: str | None = None, memory_limit: int | str | None = None
) -> Answers:
    """The predictions of a fitted model for the rows of a dataset, with their true targets, in one pass.

    Predictions are held in memory (a few numbers for each row, such as the probability of each class), rows are not.

    Parameters
    ----------
    model : fitted classifier or regressor of dkl
    dataset : Dataset
        With targets.
    exposure : str or None
        The column by which predicted rates are multiplied; None is the column of the fit, if it had one.
    memory_limit : int, str or None

    Raises
    ------
    ValueError
        If the dataset has no target or no rows, its columns are not those of `fit`, its target does not suit the
        model's task, or an exposure was given for a model without one, or is missing in the dataset.
    """
    if dataset.task is None:
        raise ValueError(f"{dataset.store or dataset!r} has no target to score against; use dkl predict")
    if not dataset.n_rows:
        raise ValueError(f"{dataset!r} has no rows to score")
    classes: np.ndarray | None = getattr(model, "classes_", None)
    task: Task = "regression" if classes is None else "classification"
    if dataset.task != task:
        # whole numbers may have been read as labels, or labels as numbers; the task of the model decides
        dataset = dataset.with_rows(*with_task(dataset.source, dataset.schema, task, repr(dataset)))
    check_has_exposure(model, exposure)
    exposure = exposure_of_fit(model, exposure)
    rows = checked_dataset(model, with_exposure_of_fit(model, dataset, exposure))
    scored: Any = model
    scorer = scored._scorer
    operands = {"scorer": scorer, "columns": () if exposure is None else (EXPOSURE,)}
    blocks = map_blocks(rows.source, score_block, operands, name="score", cost=scorer.cost, memory_limit=memory_limit)
    parts = [_answers(model, part) for _, part in blocks]
    held = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    origin: Provenance = getattr(model, "provenance_", Provenance())
    if classes is None:
        center = getattr(model, "target_center_", None)
        # A model inside a feature learner has zeros in place of the mean, which it does not store.
        is_known = center is not None and bool(np.any(center))
        loss = getattr(model, "loss_", getattr(model, "loss", None))
        if loss == "pinball":
            answers = held["answers"].reshape(len(held["y"]), -1)
            return QuantileAnswers(held["y"], answers, held["weights"], tuple(sorted(vars(model)["quantiles"])))
        return NumberAnswers(
            held["y"],
            held["answers"],
            held["weights"],
            center if is_known else None,
            loss if loss in LOG_LINK else None,
            held.get("exposure"),
        )
    # Predictions as positions in the union of the labels of the model and of the rows.
    stored = np.asarray(dataset.classes)
    labels = np.union1d(classes, stored)
    places, shares = np.searchsorted(labels, classes), None
    truth = np.searchsorted(labels, stored)[held["y"].astype(np.int64)]
    if "shares" in held:
        answers = places[held["shares"].argmax(axis=1)]
        # Labels that the model has not seen have the probability 0.
        shares = np.zeros((len(truth), len(labels)))
        shares[:, places] = held["shares"]
    else:
        answers = np.searchsorted(labels, held["answers"])
    targets = dict(origin.targets)
    known = np.array([targets.get(str(label), 0.0) for label in labels])
    return ClassAnswers(labels, truth, answers, held["weights"], shares, known if known.any() else None)


def check_has_exposure(model: FittedModel, exposure: str | None) -> None:
    """Raise ValueError if an exposure is given for a model that has none."""
    if exposure is None:
        return
    check = getattr(model, "_check_exposure", None)
    if check is None:
        raise ValueError(f"exposure={exposure!r} was given, and {type(model).__name__} has none; leave it out")
    check()


def _answers(model: FittedModel, part: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The predictions for the scored rows of one block, with targets and weights."""
    found, rows = {"y": np.asarray(part["y"]), "weights": part["weight"]}, part["scored"]
    if hasattr(model, "predict_proba"):
        return found | {"shares": np.asarray(model.predict_proba(rows))}
    answers = np.asarray(model.predict(rows))
    if (exposure := part["columns"].get(EXPOSURE)) is not None:
        found["exposure"] = exposure
        answers = answers * exposure.reshape((-1,) + (1,) * (answers.ndim - 1))
    return found | {"answers": answers}


def scores_of(answers: Answers, scoring: Sequence[str] = ()) -> tuple[Metric, ...]:
    """The metrics named in `scoring`, or all that can be computed.

    Parameters
    ----------
    answers : ClassAnswers, NumberAnswers or QuantileAnswers
    scoring : sequence of str
        Names of metrics; empty is all that the model has.

    Raises
    ------
    ValueError
        For a name that is no metric of these answers.
    """
    if scoring:
        return tuple(answers.metric(name) for name in dict.fromkeys(scoring))
    # "roc_auc" is not defined for rows of a single class, and is left out unless it was requested.
    one_label = isinstance(answers, ClassAnswers) and len(np.unique(answers.truth)) < 2
    return tuple(answers.metric(name) for name in answers.metrics if not (one_label and name == "roc_auc"))


def metric_facts(metrics: Sequence[Metric]) -> dict[str, Any]:
    """Metrics as JSON values by name, with their standard errors, 95 % intervals and baselines."""
    return {
        **{metric.name: metric.value for metric in metrics},
        "standard_errors": {metric.name: metric.standard_error for metric in metrics},
        "intervals": {metric.name: list(metric.interval) for metric in metrics},
        "baseline": {metric.name: metric.baseline for metric in metrics if metric.baseline is not None},
    }

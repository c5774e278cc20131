"""Pictures of errors on held-out rows: confusions and calibration of classes, predicted against true numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dkl.data.dataset import Dataset
from dkl.figure import CLASS_COLOURS, Axes, Display
from dkl.model_selection.held_out_scores import Answers, ClassAnswers, NumberAnswers, QuantileAnswers, held_out_answers
from dkl.protocols.estimators import FittedModel

# Labels whose counts find room in their cells, and whose names find room beside the axes.
_MOST_NUMBERED, _MOST_NAMED = 12, 30
# Dots of a cloud: more of them hide each other.
_MOST_DOTS = 2_000


@dataclass(frozen=True, eq=False)
class AnswersDisplay(Display):
    """The answers to held-out rows beside the truth.

    Of classes: the share of each label's rows that were given each label, and how often probabilities come true. Of
    numbers: predictions against the truth, and the errors along the predictions; of several targets the first. Of
    quantiles: how many targets are at most each.

    Parameters
    ----------
    answers : ClassAnswers, NumberAnswers or QuantileAnswers
        Of `dkl.model_selection.held_out_scores.held_out_answers`.
    title : str

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> from dkl.plots import AnswersDisplay
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> rows = dkl.KernelClassifier("random", calibrate=True, random_state=0).fit(X, X[:, 0] > 0)
    >>> AnswersDisplay.from_estimator(rows, X, X[:, 0] > 0).answers.confusion.sum()
    np.float64(200.0)
    """

    answers: Answers
    title: str = ""
    _size = (4.6, 4.0)
    _is_titled = True

    @classmethod
    def from_estimator(cls, model: FittedModel, X: object, y: object = None, *, title: str = "") -> Self:
        """Ask a fitted model.

        Parameters
        ----------
        model : fitted classifier or regressor of dkl
        X : Dataset, or rows as `fit` takes them
        y : array of shape (n,), or None for a Dataset
        title : str

        Returns
        -------
        AnswersDisplay

        Raises
        ------
        ValueError
            If the rows have no target, or none that suits the model.
        """
        from dkl.data.coerce import as_dataset

        dataset = X if isinstance(X, Dataset) else as_dataset(X, y)
        return cls(held_out_answers(model, dataset), title)

    @property
    def _n_panels(self) -> int:
        # Without probabilities nothing can be said of how often they come true.
        if isinstance(self.answers, ClassAnswers):
            return 2 if self.answers.calibration() else 1
        return 1 if isinstance(self.answers, QuantileAnswers) else 2

    def _draw(self, axes: Sequence[Axes]) -> None:
        if isinstance(self.answers, NumberAnswers):
            self._draw_numbers(axes, self.answers)
            return
        if isinstance(self.answers, QuantileAnswers):
            self._draw_quantiles(axes[0], self.answers)
            return
        self._draw_confusion(axes[0], self.answers)
        for ax in axes[1:]:
            self._draw_calibration(ax, self.answers)

    def _draw_confusion(self, ax: Axes, answers: ClassAnswers) -> None:
        """A cell for each pair of labels, as dark as the share of the true label's rows that are in it."""
        confusion, labels = answers.confusion, [str(label) for label in answers.labels]
        shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1e-300)
        ax.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        if len(labels) <= _MOST_NUMBERED:
            for i, j in np.ndindex(*confusion.shape):
                colour = "white" if shares[i, j] > 0.5 else "0.2"
                ax.text(j, i, f"{confusion[i, j]:,.0f}", ha="center", va="center", color=colour, fontsize="small")
        if len(labels) <= _MOST_NAMED:
            ax.set_xticks(
                range(len(labels)), labels, rotation=45 if len(labels) > 4 and max(map(len, labels)) > 3 else 0
            )
            ax.set_yticks(range(len(labels)), labels)
        ax.set(title="rows by true and predicted label", xlabel="predicted", ylabel="true")

    def _draw_calibration(self, ax: Axes, answers: ClassAnswers) -> None:
        """Observed shares against predicted probabilities; on the diagonal both are equal."""
        predicted, observed, weight = np.array(answers.calibration()).T
        _draw_kept(ax, predicted, observed, weight, "as often as it says")
        what = str(answers.labels[1]) if len(answers.labels) == 2 else "the predicted label"
        ax.set(xlabel=f"predicted probability of {what}", ylabel="share of the rows")
        ax.set_title("calibration (bars: two standard errors)")

    def _draw_quantiles(self, ax: Axes, answers: QuantileAnswers) -> None:
        """The share of targets at most each quantile; of several targets of the first, as of numbers."""
        first = answers.each[0]
        _draw_kept(ax, np.array(first.quantiles), first.shares_below, first.weights.sum(), "as many as it says")
        ax.set(xlabel="quantile", ylabel="share of the targets at most there")
        ax.set_title("quantiles (bars: two standard errors)")

    def _draw_numbers(self, axes: Sequence[Axes], numbers: NumberAnswers) -> None:
        """Predictions against the truth, and the errors along the predictions."""
        truth, answers = (
            np.asarray(values).reshape(len(values), -1)[:, 0] for values in (numbers.truth, numbers.answers)
        )
        step = -(-len(truth) // _MOST_DOTS)
        truth, answers = truth[::step], answers[::step]
        dots: dict[str, Any] = {"s": 10, "color": CLASS_COLOURS[0], "alpha": 0.5, "linewidth": 0}
        ends = [min(truth.min(), answers.min()), max(truth.max(), answers.max())]
        axes[0].plot(ends, ends, "--", color="0.6", linewidth=1.0)
        axes[0].scatter(truth, answers, **dots)
        axes[0].set(title="predicted against true", xlabel="true", ylabel="predicted")
        axes[1].axhline(0.0, linestyle="--", color="0.6", linewidth=1.0)
        axes[1].scatter(answers, truth - answers, **dots)
        axes[1].set(title="errors along the predictions", xlabel="predicted", ylabel="true less predicted")


def _draw_kept(ax: Axes, said: np.ndarray, seen: np.ndarray, weight: np.ndarray | float, as_said: str) -> None:
    """Observed shares against predicted ones, with a band of two standard errors for rows of these weights."""
    # where predictions are right, the observed share lies in this band around the diagonal for 95 % of the groups
    spread = 2.0 * np.sqrt(said * (1.0 - said) / weight)
    ax.plot([0, 1], [0, 1], "--", color="0.6", linewidth=1.0, label=as_said)
    ax.errorbar(said, seen, spread, fmt="o", color=CLASS_COLOURS[0], markersize=5, label="the model")
    ax.set(xlim=(0, 1), ylim=(-0.02, 1.02))
    ax.legend(loc="upper left")

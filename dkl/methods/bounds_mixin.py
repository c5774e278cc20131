"""Theoretical guarantees of fitted learners (`bounds_`), by the theorems of their papers, computed on access."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dkl.bounds.certificate import Bound, Bounds
from dkl.bounds.margins import error_bound, margin_shortfall, normalised_margins, played_regret, played_value
from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap
from dkl.linear.answers import Scorer
from dkl.methods.game.problem import GameRules
from dkl.methods.predicting import score_rows


class Certified:
    """A learner with bounds from its paper; a subclass implements `bounds`."""

    class_weight: Any

    @property
    def bounds_(self) -> Bounds:
        """The bounds of this fit, each of which fails with probability at most 0.05; computed without rows."""
        check_is_fitted(self)
        return self.bounds()

    def bounds(self) -> Bounds:
        """The bounds of this fit; a subclass has options for them."""
        raise TypeError(f"{type(self).__name__} does not say which bounds it carries")

    def _why_no_bounds(self) -> str:
        """The reason why theorems on independent rows do not cover this fit; empty if they do."""
        if self.class_weight is None:
            return ""
        return f"class_weight={self.class_weight!r} weights rows, and the theorems are about rows as they were drawn"


def why_no_waves(learner: Any) -> str:
    """The reason why theorems on labels and Fourier features do not cover a fit on a pool; empty if they do."""
    if not hasattr(learner, "classes_"):
        return "these targets are numbers, and the theorems are about label similarities in [-1, 1]"
    if not learner.pool_.is_fourier:
        return f"features of {learner.family_!r} are not bounded by 1; `dkl.bounds` takes another feature_norm"
    return ""


class CertifiedMargins(Certified):
    """Bounds of a margin learner: theorem 4.1 and corollary 4.2 for the fitted game, theorem 4.3 for given rows."""

    solver: str
    loss: Any
    C: float | None
    projection: str
    max_norm: float | None
    dtype: str
    classes_: Any
    feature_map_: FeatureMap
    coef_: np.ndarray
    history_: list[dict[str, float]]
    certified_: bool
    n_features_in_: int
    total_weight_: float

    def bounds(self) -> Bounds:
        """Bounds of the game: on the objective with its features, and on the distance of the margin from the best.

        Returns
        -------
        Bounds
            Empty for corrective rounds, whose dual weights the theorems do not cover; see `error_bound` for theorem
            4.3.

        References
        ----------
        Bullins, Zhang & Zhang 2018, theorem 4.1 and corollary 4.2.
        """
        if self.solver != "game":
            return Bounds(
                why_none="theorems 4.1 and 4.2 are about solver='game'; error_bound(X, y) has the probability of error"
            )
        last = self.history_[-1]
        # the margin of the fit differs from the best one of the game by at most upper - lower
        shortfall = margin_shortfall(last["lower"], last["upper"], certified=self.certified_)
        if "response" not in last or self.projection != "exact":
            return Bounds([shortfall])
        rounds = {name: [entry[name] for entry in self.history_] for name in ("step", "gradient", "weight", "response")}
        rules = GameRules(C=1.0 if self.C is None else self.C, loss=self.loss or "hinge")
        # each dual weight lies in [0, box]; there is one for each row, and with several classes for each class
        box = rules.upper(self.total_weight_)
        duals = self.total_weight_ * (1 if len(self.classes_) == 2 else len(self.classes_))
        regret = played_regret(rounds["step"], rounds["gradient"], box * np.sqrt(duals), rounds["weight"])
        # the hinge objective is at most the sum of all dual weights at their upper bound
        largest = box * duals if rules.loss == "hinge" else None
        return Bounds([played_value(rounds["response"], regret, weights=rounds["weight"], largest=largest), shortfall])

    def error_bound(self, X: object, y: object = None, *, row_norm: float, eps: float = 0.05) -> Bound:
        """Theorem 4.3: the probability of error of the working model without its intercept, by margins on these rows.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
            The rows of the fit; one number for each row is held in memory.
        y : array of shape (n,) or None
            Labels; None for a Dataset, which has its own.
        row_norm : float
            R_x: a radius such that all rows lie in a ball of it; in scaled units where `scaling` is set.
        eps : float
            The bound fails with at most this probability.

        Returns
        -------
        Bound

        Raises
        ------
        ValueError
            If R_w is not bounded: without `max_norm`, or for other than Fourier features; for more than two classes;
            for rows without labels.

        References
        ----------
        Bullins, Zhang & Zhang 2018, theorem 4.3.
        """
        check_is_fitted(self)
        self._check_theorem()
        labels = X.y if isinstance(X, Dataset) else y
        if labels is None:
            raise ValueError("theorem 4.3 counts margins, which need labels; pass y, or a Dataset that has a target")
        # theorem 4.3 is about f(x) = w.phi(x), without an intercept
        scores = score_rows(self, Scorer(self.feature_map_, self.coef_, np.zeros(1), self.dtype), X)
        signs = np.where(np.asarray(labels) == self.classes_[1], 1.0, -1.0)
        margins = normalised_margins(np.asarray(scores)[:, 0], signs, self.coef_)
        return error_bound(margins, float(self.max_norm or 0.0), row_norm, eps=eps)

    def _check_theorem(self) -> None:
        """Raise ValueError if theorem 4.3 does not cover the fit."""
        name, classes = type(self).__name__, getattr(self, "classes_", ())
        if len(classes) != 2:
            raise ValueError(
                f"theorem 4.3 is about two classes, and this {name} was fitted to {len(classes) or 'none'}"
            )
        if self.feature_map_.activation != "cos-sin":
            raise ValueError("theorem 4.3 is about frequencies in R^d; use Gaussian() or another family of waves")
        # R_w must be fixed before the rows are seen; refinement may have exceeded it, rounding slightly
        lengths = np.linalg.norm(self.feature_map_.projection.dense(), axis=1)
        if self.max_norm is None or lengths.max() > self.max_norm * (1.0 + 1e-5):
            raise ValueError(
                f"theorem 4.3 needs the length of frequencies bounded before the rows are seen, and max_norm="
                f"{self.max_norm!r} bounds none of up to {lengths.max():.4g}; fit with max_norm set and refine=0"
            )

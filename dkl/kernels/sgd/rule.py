"""Stochastic gradient steps by scikit-learn's rule: their parameters, and the linear models during the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.protocols.arrays import Array

# relative step of the intercept for sparse rows, as in scikit-learn
_SPARSE_INTERCEPT = 0.01


@dataclass(frozen=True)
class SGDRule:
    """The parameters of scikit-learn's `SGDClassifier` and `SGDRegressor` that determine a step.

    Parameters
    ----------
    loss : str
        One of theirs, "poisson", "gamma", "pinball", or "softmax" for all models jointly.
    penalty : {"l2", "l1", "elasticnet", None}
    alpha, l1_ratio : float
    learning_rate : {"constant", "optimal", "invscaling", "adaptive"}
        "adaptive" is constant within a call, as in scikit-learn's `partial_fit`.
    eta0, power_t : float
    epsilon : float
        For "pinball" the quantile.
    fit_intercept : bool
    average : int
        The step from which on iterates are averaged; 0 for no averaging.
    sparse : bool
        Whether rows count as sparse: steps of the intercept are a hundred times smaller, and the l1 penalty shrinks
        only the coefficients of the entries of each row.
    """

    loss: str = "hinge"
    penalty: str | None = "l2"
    alpha: float = 1e-4
    l1_ratio: float = 0.15
    learning_rate: str = "optimal"
    eta0: float = 0.01
    power_t: float = 0.5
    epsilon: float = 0.1
    fit_intercept: bool = True
    average: int = 0
    sparse: bool = False

    @property
    def penalties(self) -> tuple[float, float]:
        """The factors of the absolute and of the squared coefficients."""
        # the penalty is alpha (l1_ratio |w|_1 + (1 - l1_ratio) |w|^2 / 2)
        share = {"l1": 1.0, "elasticnet": self.l1_ratio}.get(self.penalty or "", 0.0)
        strength = 0.0 if self.penalty is None else self.alpha
        return share * strength, (1.0 - share) * strength

    @property
    def intercept_rate(self) -> float:
        """Factor of a step for the intercept."""
        return (_SPARSE_INTERCEPT if self.sparse else 1.0) if self.fit_intercept else 0.0

    @property
    def suits_gpu(self) -> bool:
        """Whether a GPU has a kernel for the steps: not with an l1 penalty or averages, which no fit has."""
        return not (self.penalties[0] or self.average)

    def step_lengths(self, clock: float, n_rows: int, xp: Any = np) -> Any:
        """eta of each row, for steps numbered from `clock` on: (n,) float64, an array of the namespace."""
        # step numbers start at 1, as in scikit-learn
        steps = clock + xp.arange(n_rows)
        if self.learning_rate == "optimal":
            # Bottou's heuristic: the first step has the length of typical coefficients, alpha^-1/4
            return 1.0 / (self.alpha * (self.alpha**-0.75 + steps - 1.0))
        return self.eta0 / steps**self.power_t if self.learning_rate == "invscaling" else xp.full(n_rows, self.eta0)


@dataclass(frozen=True, eq=False)
class SGDModels:
    """K linear models during the steps.

    Attributes
    ----------
    coef : ndarray of shape (K, m)
    intercept : ndarray of shape (K,), float64
    average_coef, average_intercept : ndarray
        Means of the iterates, in the shapes of the models; unused if the rule averages nothing.
    clock : float
        Number of the next step.
    """

    coef: Array
    intercept: Array
    average_coef: Array
    average_intercept: Array
    clock: float = 1.0

    @staticmethod
    def arrays() -> tuple[str, ...]:
        """The names of all attributes but the clock."""
        return "coef", "intercept", "average_coef", "average_intercept"

"""What a stochastic gradient step is by scikit-learn's rule, and the linear models under way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.protocols.arrays import Array

# how fast the intercept of sparse rows learns, in scikit-learn as here
_SPARSE_INTERCEPT = 0.01


@dataclass(frozen=True)
class SGDRule:
    """What a step is: the parameters of scikit-learn's `SGDClassifier` and `SGDRegressor` that steps depend on.

    Parameters
    ----------
    loss : str
        One of theirs, "poisson", "gamma", "pinball", or "softmax" of all models together.
    penalty : {"l2", "l1", "elasticnet", None}
    alpha, l1_ratio : float
    learning_rate : {"constant", "optimal", "invscaling", "adaptive", "pa1", "pa2"}
        "adaptive" is constant within a call, as in scikit-learn's `partial_fit`.
    eta0, power_t : float
    epsilon : float
        Of "pinball" the quantile.
    fit_intercept : bool
    average : int
        The step from which on iterates are averaged; 0 is none.
    sparse : bool
        Whether rows count as sparse: their intercept learns a hundred times slower, and the l1 penalty shrinks the
        coefficients of the entries of each row alone.
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
        # The penalty is alpha (l1_ratio |w|_1 + (1 - l1_ratio) |w|^2 / 2).
        share = {"l1": 1.0, "elasticnet": self.l1_ratio}.get(self.penalty or "", 0.0)
        strength = 0.0 if self.penalty is None else self.alpha
        return share * strength, (1.0 - share) * strength

    @property
    def intercept_rate(self) -> float:
        """Of a step, what the intercept takes."""
        return (_SPARSE_INTERCEPT if self.sparse else 1.0) if self.fit_intercept else 0.0

    @property
    def is_passive(self) -> bool:
        """Whether steps are passive-aggressive: no longer than what brings the row's loss to zero."""
        return self.learning_rate in ("pa1", "pa2")

    def step_lengths(self, clock: float, n_rows: int, xp: Any = np) -> Any:
        """eta of each row, from the step number `clock` on: (n,) float64, an array of the namespace."""
        # Step numbers begin at 1, as in scikit-learn.
        steps = clock + xp.arange(n_rows)
        if self.learning_rate == "optimal":
            # Bottou: the first step of typical coefficients, of length alpha^-1/4
            return 1.0 / (self.alpha * (self.alpha**-0.75 + steps - 1.0))
        return self.eta0 / steps**self.power_t if self.learning_rate == "invscaling" else xp.full(n_rows, self.eta0)


@dataclass(frozen=True, eq=False)
class SGDModels:
    """K linear models under way.

    Attributes
    ----------
    coef : ndarray of shape (K, m)
    intercept : ndarray of shape (K,), float64
    average_coef, average_intercept : ndarray
        Means of the iterates, as large as the models; untouched where the rule averages nothing.
    clock : float
        The number of the next step.
    """

    coef: Array
    intercept: Array
    average_coef: Array
    average_intercept: Array
    clock: float = 1.0

    @staticmethod
    def arrays() -> tuple[str, ...]:
        """The names of all but the clock."""
        return "coef", "intercept", "average_coef", "average_intercept"

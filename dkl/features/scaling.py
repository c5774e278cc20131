"""The frozen description of how raw columns are scaled before they are projected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dkl.errors import refuse_non_finite

ScalingKind = Literal["standard", "minmax", "unit", "quantile", "counts"]
ScalingChoice = ScalingKind | Literal["auto"]
"""The parameter of learners: "auto" is "standard" for dense rows, and no scaling for sparse ones."""


@dataclass(frozen=True, eq=False)
class Scaler:
    """A fitted scaling of d columns: `dkl.kernels.scale` applies it, `dkl.methods.preparation.scalers` makes it.

    Parameters
    ----------
    kind : {"standard", "minmax", "unit", "quantile", "counts"}
        "standard" and "minmax": ``(x - center) / scale``. "unit": all rows divided by one number, ``scale[0]``, the
        largest norm of a training row. "quantile": each column is mapped by its empirical distribution function to a
        standard normal one, clipped at +-3. "counts": each number becomes
        ``log(1 + x)``, and each row is then divided by its Euclidean length; rows of zeros stay. Numbers below 0 are
        refused.
    center, scale : ndarray of shape (d,), float64
        0 and 1 for columns that are not scaled (one-hot, flags) and for kinds that do not use them.
    knots : ndarray of shape (q, d) or None
        Empirical quantiles of each column, ascending ("quantile" only).
    passthrough : ndarray of shape (d,), bool
        Columns that keep their values whatever the kind is.
    """

    kind: ScalingKind
    center: np.ndarray
    scale: np.ndarray
    passthrough: np.ndarray
    knots: np.ndarray | None = None

    def __post_init__(self) -> None:
        # An overflow would turn every row into NaN; it is refused here, where the error can name the column.
        for name, values in (("center", self.center), ("scale", self.scale), ("quantile", self.knots)):
            if values is not None:
                refuse_non_finite(
                    values,
                    f"the {name} of kind {self.kind!r} for column",
                    "the squares of its values, or sums of them, are larger than float64 holds. Divide such columns by "
                    "a large number first, or drop the rows with outliers",
                )

    @property
    def n_columns(self) -> int:
        return len(self.center)

    @property
    def is_linear(self) -> bool:
        """Whether a scaled column is ``(x - center) * factor`` of the column alone."""
        return self.kind not in ("quantile", "counts")

    @property
    def mixes_columns(self) -> bool:
        """Whether a scaled column depends on the other columns of its row."""
        return self.kind == "counts"


def same_scaling(first: Scaler | None, second: Scaler | None) -> bool:
    """Whether two scalers (None leaves rows as they are) scale every row alike."""
    if first is second or first is None or second is None:
        return first is second
    names = ("center", "scale", "passthrough", "knots")
    return first.kind == second.kind and all(
        np.array_equal(getattr(first, name), getattr(second, name)) for name in names
    )

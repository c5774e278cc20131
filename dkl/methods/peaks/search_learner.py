"""The shared part of ascents and grid search for peaks: the targets, the wanted number, and fitted attributes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.families import Family, FiniteFamily, Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.methods.frequency_search.learner import PreparedRows, check_searchable
from dkl.methods.parameters import kept_frequencies
from dkl.methods.peaks.sums import PeakTargets


@dataclass(frozen=True, eq=False)
class PeakSearch:
    """The parameters of PeakFeatures that mean the same for each `method`.

    Parameters
    ----------
    family, n_features, plain_share, cosine, max_norm, search_rows
    """

    family: Family | None
    n_features: int
    plain_share: float
    cosine: float
    max_norm: float | None
    search_rows: int | None

    @property
    def given_family(self) -> Family:
        """The family, before its bandwidth is known."""
        return Gaussian() if self.family is None else self.family

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of frequencies to search for, and to keep in all."""
        # a pair of a cosine and a sine takes two columns
        n_points = self.n_features // 2
        return int(np.ceil((1.0 - self.plain_share) * n_points)), n_points

    def check(self) -> None:
        """Raise ValueError for a family that cannot be searched, or for `n_features` below one of its pairs."""
        check_searchable("PeakFeatures", self.given_family)
        if not isinstance(self.given_family, FiniteFamily):
            kept_frequencies("PeakFeatures", self.n_features, self.given_family)

    def columns(self, problem: object, start: object) -> None:
        """No row columns."""
        return None

    def targets(self, rows: PreparedRows) -> PeakTargets:
        """The weights s of the potential: class indicators minus their shares, or standardised targets."""
        dataset, scale = rows.dataset, rows.target_scale
        if dataset.classes is not None:
            # the share of each class in the total weight, class factors included
            totals = np.asarray(dataset.class_weights, dtype=np.float64)
            totals = totals if rows.class_weight is None else totals * rows.class_weight
            return PeakTargets(len(totals), rows.class_weight, totals / totals.sum())
        if scale is None:
            # a plan reads no targets: their number alone counts
            n_targets = dataset.schema.n_targets or 1
            return PeakTargets(None, None, np.zeros(n_targets), np.ones(n_targets))
        return PeakTargets(None, None, scale.center, scale.scale)


def kept_attributes(pool: FeatureMap, potentials: np.ndarray, kept: np.ndarray) -> dict[str, Any]:
    """Fitted attributes: all candidates with potentials, and the map of the kept ones with amplitudes 1 / sqrt(m)."""
    weights = np.zeros(len(potentials))
    weights[kept] = 1.0 / max(1, len(kept))
    return {
        "pool_": pool,
        "feature_map_": pool.take(kept, np.full(len(kept), 1.0 / np.sqrt(max(1, len(kept))))),
        "candidate_potentials_": potentials,
        "potentials_": potentials[kept],
        "weights_": weights,
    }

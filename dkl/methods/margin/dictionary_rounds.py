"""Rounds over several dictionaries as a solver of `MarginFeatures`: makes the problem, and the fitted attributes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dkl.features.dictionaries import Dictionaries, ListedDictionary, Steps
from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap, combined_map, shares_of_lengths
from dkl.features.nystrom_projection import NystromProjection
from dkl.kernels.blas import one_blas_thread
from dkl.methods.frequency_search.learner import PreparedRows
from dkl.methods.margin.rounds import AUTO_FEATURES, CorrectiveSolver
from dkl.methods.nystrom.landmarks import whitening_of
from dkl.methods.rounds.dictionary import Dictionary
from dkl.methods.rounds.driver import RoundsDriver
from dkl.methods.rounds.learner import WorkingLoss, monotone_signs, rounds_problem
from dkl.methods.rounds.problem import RoundsProblem, RoundsState, model_map
from dkl.methods.rounds.sums import HeldTargets

# All rounds run on rows in memory, without further passes, if these take at most this many bytes, and are at most
# `RoundsProblem.search_rows`.
_IN_MEMORY_BYTES = 256 << 20


@dataclass(frozen=True, eq=False)
class DictionarySolver(CorrectiveSolver):
    """`family=[...]` of MarginFeatures: atoms of several dictionaries compete in each round.

    The parameters are those of `CorrectiveSolver`; the penalty is chosen on held-out rows in each round.

    Parameters
    ----------
    monotone : mapping of int or str to {1, -1}, or None
        As in MarginFeatures.
    """

    monotone: Any

    stage: ClassVar[str] = "dictionaries"

    def check(self) -> None:
        """Raise ValueError for parameters that do not apply to a list of families."""
        for name, neutral in {"C": None, "tol": None, "refine": 0}.items():
            if getattr(self, name) != neutral:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} has no meaning with a list of families: held-out rows choose the "
                    f"penalty and the end; leave {name} out"
                )

    def driver(self) -> Any:
        """The driver of the rounds."""
        return RoundsDriver()

    def problem(self, rows: PreparedRows, start: Any) -> Any:
        """The problem on these rows; raises ValueError for a loss that does not match the targets."""
        dataset, family = rows.dataset, rows.family
        if not isinstance(family, Dictionaries):
            raise TypeError(f"several dictionaries are searched, not {family!r}")
        family.validate()
        loss = WorkingLoss.of(self, dataset)
        targets = loss.targets(dataset, loss.units(rows.target_scale), rows.class_weight)
        held_out = rows.context.judging(self.validation_fraction, rows.seed)
        most = min(RoundsProblem.search_rows, max(1_000, rows.within(_IN_MEMORY_BYTES)))
        steps = family.steps or Steps()
        signs = monotone_signs(self.monotone, dataset, len(targets.models))
        free = None if signs is None else signs == 0
        if free is not None and family.steps is None and not family.has_columns:
            raise ValueError(
                "monotone is a promise that steps and columns can keep, and waves and landmarks cannot: these take "
                "part on the other columns; list dkl.Steps() or dkl.Coordinates() beside them"
            )
        if free is not None and family.others and not free.any():
            raise ValueError(
                f"monotone names all {dataset.n_columns} columns, so that none is left for {family.others[0]!r}; list "
                "dkl.Steps() and dkl.Coordinates() alone"
            )
        return rounds_problem(
            dataset,
            HeldTargets(targets, held_out.mask),
            loss,
            total_weight=rows.total_weight,
            features_per_round=self.features_per_round,
            search_rows=self.search_rows or most,
            for_machine=rows.context.for_machine,
            n_features=AUTO_FEATURES if self.n_features == "auto" else int(self.n_features),
            dictionaries=tuple(self._dictionary(rows, one, free) for one in family.others),
            depth=0 if family.steps is None else steps.depth,
            bins=steps.bins,
            has_columns=True if family.has_columns else False if family.steps is None else None,
            in_memory=dataset.n_rows <= (self.search_rows or most),
            patience=RoundsProblem.patience if self.patience is None else self.patience,
            seed=rows.seed,
            dtype="float64" if family.is_double else rows.dtype,
            signs=signs,
            rounds=self.rounds,
            growth=0.1 if self.features_per_round is None else 0.0,
        )

    def fitted(self, rows: PreparedRows, problem: Any, state: Any) -> dict[str, Any]:
        """The fitted attributes of the best round on held-out rows: its feature map, and the working model.

        Chosen landmarks are whitened. All m columns are divided by sqrt(m), and l whitened ones among them multiplied
        by sqrt(l), so that a column of each kind has a mean square of about 1 / m.
        """
        if not isinstance(problem, RoundsProblem) or not isinstance(state, RoundsState):
            raise TypeError("this is no state of rounds over several dictionaries")
        n_atoms, n_points = (int(size) for size in state.best_sizes)
        n_atoms = min(state.n_atoms, max(n_atoms, 1))
        best = replace(
            state,
            columns=state.columns[:n_atoms],
            thresholds=state.thresholds[:n_atoms],
            kinds=state.kinds[:n_atoms],
            points=state.points[:n_points],
            source=state.source[:n_points],
        )
        whole, coefficients = model_map(problem, best), state.best
        if whole.n_features < 2:
            raise ValueError(
                "no column of any dictionary lowers the loss on the rows that are held out, so there is nothing to "
                "learn; check the columns, or allow more rows (max_rows)"
            )
        m = whole.n_features - 1
        maps: list[FeatureMap] = []
        factors, coef = [], []
        for part, own in whole.split(coefficients):
            if part.activation == "steps":
                # the first atom is the constant, whose coefficient is the intercept
                kept = np.arange(1, part.n_features)
                if len(kept) == 0:
                    continue
                part, own = part.take(kept), own[:, kept]
            factor = 1.0 / np.sqrt(m)
            if isinstance(part.projection, NystromProjection):
                # whitened kernels k(x, Z) A with A = L^-T have the coefficients A^-1 w for the same model
                whitening = whitening_of(part.projection.landmarks, part.projection.kernel)
                with one_blas_thread():
                    own = np.linalg.solve(whitening, (own * part.amplitudes).T).T
                projection = replace(part.projection, whitening=whitening)
                part = replace(part, projection=projection, amplitudes=np.ones(part.n_features))
                factor *= np.sqrt(part.n_features)
            maps.append(part)
            factors.append(factor)
            coef.append(own / factor)
        loss = WorkingLoss.of(self, rows.dataset)
        units = loss.units(rows.target_scale)
        weights, intercept = loss.in_own_units(np.concatenate(coef, axis=1), coefficients[:, 0], units)
        feature_map = combined_map(maps, np.array(factors))
        return {
            "feature_map_": feature_map,
            "weights_": shares_of_lengths((weights * feature_map.amplitudes)[:, None]),
            "coef_": weights,
            "intercept_": intercept,
            "loss_": loss.name,
            "history_": state.lines(),
            "certified_": False,
            "message_": f"{state.message}: {m} columns in {len(state.history)} rounds",
        }

    def _dictionary(self, rows: PreparedRows, family: Any, free: np.ndarray | None) -> Dictionary:
        """One of the dictionaries, restricted to the columns without a sign in `monotone`."""
        metric = rows.metric
        if free is not None:
            if isinstance(family, FiniteFamily):
                raise ValueError(
                    f"monotone is a promise that steps and columns can keep, and each feature of {family!r} depends on "
                    "all columns; list dkl.Steps(), dkl.Coordinates(), waves or landmarks alone"
                )
            # a metric that is 0 in the columns with a sign
            metric = free.astype(np.float64) if metric is None else (metric.T * free).T
        if isinstance(family, ListedDictionary):
            return family.searched(rows.scaler, metric)
        return self._frequency_space(replace(rows, family=family, metric=metric))

"""The margin game as a solver of `MarginFeatures`: its problem from parameters and rows, columns, fitted values."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import dask
import dask.array as da
import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import Family, FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.methods.choice import choose_features
from dkl.methods.frequency_search.learner import PreparedRows, SearchStrategy
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.game.driver import GameDriver, dual_measure, machine_coefficients
from dkl.methods.game.excessive_gap import ExcessiveGapDriver, ExcessiveGapState, norm_machine
from dkl.methods.game.problem import GameProblem, GameRules, GameState
from dkl.methods.game.sums import GameTargets
from dkl.methods.parameters import family_of, kept_frequencies
from dkl.passes.loop import ColumnStore
from dkl.passes.row_columns import RowColumns

# Rounds on a finite family for rounds=None; features drawn from a family that is neither finite nor of cosine-sine
# pairs (ArcCosine).
_POOL_ROUNDS, _POOL_SIZE = 200, 1_000
# In R^d a round adds 1 / _FEWEST_ROUNDS of all frequencies, but at most _MOST_PER_ROUND.
_FEWEST_ROUNDS, _MOST_PER_ROUND = 20, 10
# Rows of the first search; limits on the rows and bytes of later ones.
_FIRST_SAMPLE, _MOST_SAMPLED, _SAMPLE_BYTES = 4_000, 100_000, 64 << 20


@dataclass(frozen=True)
class DualColumns:
    """Row columns and, if they are temporary, their folder, which is deleted once nothing refers to it."""

    columns: RowColumns
    folder: Any = field(default=None, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy in another process reads the columns, but does not keep this process's folder
        return DualColumns, (self.columns,)

    def mean_duals(self, index: int) -> np.ndarray:
        """The mean dual weights of the rows of a block."""
        return self.columns.values("mean", index)

    def all_mean_duals(self) -> da.Array:
        """The mean dual weights of all rows as a Dask array, with a chunk for each block."""
        first = self.mean_duals(0)
        read = dask.delayed(DualColumns.mean_duals, pure=False)
        parts = [
            da.from_delayed(read(self, index), (rows, *first.shape[1:]), first.dtype)
            for index, rows in enumerate(self.columns.block_rows)
            if rows
        ]
        return da.concatenate(parts)


@dataclass(frozen=True, eq=False)
class PlayedGame:
    """A finished game with the dual weights of its rows, which another fit may continue.

    Attributes
    ----------
    state : GameState or ExcessiveGapState
    columns : DualColumns
    seed : int
    terms : dict
        Parameters by name that a continued game must share, since the dual weights are feasible for no others.
    """

    state: GameState | ExcessiveGapState
    columns: DualColumns
    seed: int
    terms: dict[str, Any]


class GameSolver(SearchStrategy):
    """`solver="game"` of MarginFeatures: no-regret play (Algorithm 2), or the excessive gap technique.

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", Algorithms 2 and 3, appendix A.
    """

    stage: ClassVar[str] = "game"

    def check(self) -> None:
        """Raise ValueError if the parameters do not define a game; reads no rows."""
        family = family_of(self.given)
        if self.given.loss not in (None, "hinge", "squared_hinge"):
            raise ValueError(
                "solver='game' of MarginFeatures plays for loss='hinge' or loss='squared_hinge', got "
                f"loss={self.given.loss!r}; use solver='corrective'"
            )
        pairing = getattr(family, "pairing", None)
        if pairing == "phase":
            raise ValueError(
                f"the game answers with cosine-sine pairs, and {family!r} has cosines with a phase; use "
                "pairing='cos-sin'"
            )
        if self.given.dynamics == "excessive-gap" and (pairing is not None or self.given.projection != "exact"):
            raise ValueError(
                "dynamics='excessive-gap' needs a finite set of features (SphericalHarmonics, Coordinates, ArcCosine) "
                f"and projection='exact'; got family={family!r}, projection={self.given.projection!r}. Use "
                "dynamics='no-regret'"
            )
        if self.given.n_features == "auto":
            raise ValueError("n_features='auto' needs solver='corrective': the game plays a number of rounds")

    def driver(self) -> GameDriver | ExcessiveGapDriver:
        """The driver for `dynamics`."""
        return ExcessiveGapDriver() if self.given.dynamics == "excessive-gap" else GameDriver()

    def continued(self, last: Mapping[str, Any], dataset: Dataset, drawn: int) -> tuple[PlayedGame, int]:
        """The game of the last fit in this process, and its seed, so that a continued game equals one longer game.

        Raises
        ------
        ValueError
            If there is none, or if the rows, or a parameter that `_terms` lists, have changed since.
        """
        played: PlayedGame | None = last.get("_played")
        if played is None:
            raise ValueError(
                "warm_start=True of solver='game' goes on with the dual weights of the last fit's rows, and there are "
                "none: that fit was no game, or was loaded from a file; set warm_start=False"
            )
        now = self._terms(dataset)
        if changed := [name for name, value in played.terms.items() if now[name] != value]:
            raise ValueError(
                "warm_start=True of solver='game' goes on with the dual weights of the last fit, and since then these "
                f"have changed: {', '.join(changed)}; set warm_start=False to begin anew"
            )
        return played, played.seed

    def problem(self, rows: PreparedRows, start: PlayedGame | None) -> GameProblem:
        """The game on these rows; the rounds of `start` are added to those still to be played.

        Raises
        ------
        ValueError
            If the targets are numbers, the loss is not a margin loss, or the features have random phases.
        """
        dataset, family = rows.dataset, rows.family
        if dataset.classes is None:
            raise ValueError(
                "solver='game' of MarginFeatures learns from class labels, and these targets are numbers (regression): "
                "the game is played for the dual weights of a margin, of which theorems 4.1 to 4.3 of the paper speak, "
                "and the paper states none for errors of numbers; use solver='corrective', which searches the same "
                "potential of the residuals"
            )
        self.check()
        # The kernel player chooses from a finite set of features, or searches cosine-sine pairs in R^d. Features that
        # are neither (ArcCosine) are drawn once, and the game is played on the draw.
        pool: FeatureMap | None = None
        if isinstance(family, FiniteFamily):
            pool = family.pool(dataset.n_columns, self.given.dtype)
        elif not hasattr(family, "pairing"):
            pool = family.draw(_POOL_SIZE, dataset.n_columns, rows.seed, self.given.dtype)
        options_set = {name: getattr(self.given, name) for name in ("chains", "steps", "stride", "noise", "max_norm")}
        options_set = {name: value for name, value in options_set.items() if value is not None}
        # most dual weights of a hinge are 0: an ascent skips these rows, and takes less time
        options = SearchOptions(sparse_share=self.given.sparse_share, support_only=True, **options_set)
        first_rows = self.given.search_rows or _FIRST_SAMPLE
        judges = self.given.patience is not None
        held_out = rows.context.left_out(self.given.validation_fraction, rows.seed, needs_rows=judges)
        targets = GameTargets(len(dataset.classes), rows.class_weight, None if held_out is None else held_out.mask)
        return GameProblem(
            targets=targets,
            rules=self._rules(family, pool, None if start is None else start.state),
            total_weight=rows.total_weight,
            n_columns=dataset.n_columns,
            pool=None if pool is None else replace(pool, scaler=rows.scaler),
            space=None if pool is not None else rows.frequency_space("MarginFeatures", options),
            seed=rows.seed,
            search_rows=first_rows,
            most_rows=min(dataset.n_rows, max(first_rows, min(_MOST_SAMPLED, rows.within(_SAMPLE_BYTES)))),
            n_candidates=options.chains,
            dtype=self.given.dtype,
            start=None if start is None else start.state,
        )

    def columns(self, problem: GameProblem, start: PlayedGame | None) -> ColumnStore:
        """The row columns of the dual weights, with those of a game that is continued."""
        driver = self.driver()
        # it raises ValueError for a pool that its dynamics do not support, before the first pass
        driver.init(problem)
        return ColumnStore(self._place[0], driver.columns(problem), None if start is None else start.columns.columns)

    def fitted(self, rows: PreparedRows, problem: GameProblem, state: GameState | ExcessiveGapState) -> dict[str, Any]:
        """The learned kernel sum_t lambda_t phi_t(x).phi_t(x'), its primal machine, and the rows' dual weights."""
        if isinstance(state, ExcessiveGapState):
            feature_map, weights, coef = norm_machine(problem, state)
            intercept = state.intercepts
        else:
            feature_map, weights = dual_measure(problem, state)
            coef, intercept = machine_coefficients(state)
        message = state.message
        if len(weights) > problem.rules.most:
            # A game on a pool may choose more features than `n_features`: the heaviest are kept, a block as a whole,
            # and lambda is scaled to sum 1. The product sqrt(lambda) coef stays as it was, so that coef is reduced.
            groups = feature_map.groups
            of_blocks = np.bincount(groups, weights)
            heaviest = choose_features(of_blocks, problem.rules.most, 0, estimator="support", groups=groups).index
            share = float(weights[heaviest].sum())
            message += (
                f"; {len(heaviest)} of {len(weights)} frequencies are kept, with {100 * share:.1f} % of the measure"
            )
            weights = weights[heaviest] / share
            parts = coef.reshape(len(coef), feature_map.columns_a_frequency, -1)[:, :, heaviest]
            coef = parts.reshape(len(coef), -1) * np.sqrt(share)
            feature_map = feature_map.take(heaviest, np.sqrt(weights))
        store, folder = self._place
        kept = DualColumns(RowColumns.open(store, rows.dataset.source), folder)
        dual = kept.all_mean_duals()
        return {
            "feature_map_": feature_map,
            "weights_": weights,
            "coef_": coef,
            "intercept_": intercept,
            "history_": [dict(entry) for entry in state.history],
            "duality_gap_": float(state.history[-1]["relative_gap"]),
            # an upper bound if the largest potential is known; in R^d a search only bounds it from below
            "certified_": problem.pool is not None and problem.rules.projection == "exact",
            "message_": message,
            "dual_": dual[:, 0] if dual.shape[1] == 1 else dual,
            "_played": PlayedGame(state, kept, rows.seed, self._terms(rows.dataset)),
        }

    @cached_property
    def _place(self) -> tuple[str, tempfile.TemporaryDirectory[str] | None]:
        """The folder of the row columns: at the checkpoint, in Dask's `temporary_directory`, or the system's."""
        if self.given.checkpoint is not None:
            return f"{str(self.given.checkpoint).rstrip('/')}/game-columns", None
        shared = dask.config.get("temporary_directory", None)
        folder = tempfile.TemporaryDirectory(prefix="dkl-game-", dir=shared, ignore_cleanup_errors=True)
        return f"{folder.name}/columns", folder

    def _terms(self, dataset: Dataset) -> dict[str, str]:
        """A fingerprint of the rows, penalty and box of a game, since its dual weights are feasible for no others."""
        names = ["family", "loss", "C", "projection", "dynamics", "scaling", "class_weight", "dtype"]
        names += ["patience", "validation_fraction"] if self.given.patience is not None else []
        return {"the rows": dataset.fingerprint, **{name: repr(getattr(self.given, name)) for name in names}}

    def _rules(self, family: Family, pool: FeatureMap | None, start: GameState | ExcessiveGapState | None) -> GameRules:
        """Length and steps of the game: enough rounds to find the frequencies that are still missing."""
        most = kept_frequencies("MarginFeatures", self.given.n_features, family)
        before, missing = (0, most) if start is None else (len(start.history), max(0, most - len(start.weights)))
        rounds, per_round = self.given.rounds, self.given.features_per_round
        if per_round is not None:
            per_round = kept_frequencies("MarginFeatures", per_round, family)
        if pool is not None:
            rounds, per_round = rounds or _POOL_ROUNDS, per_round or 1
        elif per_round is None:
            shared = -(-missing // rounds) if rounds else int(np.clip(most // _FEWEST_ROUNDS, 1, _MOST_PER_ROUND))
            per_round = max(1, shared)
        return GameRules(
            C=1.0 if self.given.C is None else self.given.C,
            loss=self.given.loss or "hinge",
            rounds=before + (rounds or -(-missing // per_round)),
            per_round=per_round,
            most=most,
            tol=self.given.tol,
            patience=self.given.patience,
            projection=self.given.projection,
        )

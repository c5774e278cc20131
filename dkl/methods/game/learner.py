"""Playing the margin game for a learner: its parameters as rules, its rows as passes, and what it leaves behind."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.linear.minibatches import HeldOut
from dkl.methods.choice import choose_blocks
from dkl.methods.frequency_search.learner import frequency_space_of, rows_within, weight_of
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.game.driver import GameDriver, dual_measure, machine_coefficients
from dkl.methods.game.excessive_gap import ExcessiveGapDriver, ExcessiveGapState, norm_machine
from dkl.methods.game.problem import GameProblem, GameRules, GameState
from dkl.methods.game.sums import GameTargets
from dkl.methods.parameters import family_of, kept_frequencies
from dkl.passes.loop import ColumnStore
from dkl.passes.row_columns import RowColumns

_POOL_ROUNDS = 200
_POOL_SIZE = 1_000
_FEWEST_ROUNDS = 20
_MOST_PER_ROUND = 10
_FIRST_SAMPLE = 4_000
_SAMPLE_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class GameResult:
    """How a game ended.

    Attributes
    ----------
    feature_map : FeatureMap
        Amplitudes sqrt(lambda): the kernel sum_t lambda_t phi_t(x).phi_t(x').
    weights : ndarray of shape (m,)
        lambda, the learned dual measure; sums to 1.
    history : list of dict
        One a round: "upper", "lower" and "gap" of the objective, "relative_gap", "margin" (1 / |w|), "potential" (mean
        over the answer), "support" (frequencies), "at_zero" and "at_bound" (shares of the dual weights), "error".
    dual : dask.array.Array of shape (n,), or (n, K) for K > 2 classes
        The mean of the dual weights over the rounds; lazy, 0 for rows held out.
    duality_gap : float
        Of the last round, relative to the objective.
    certified : bool
        The gap is a bound. In R^d it is an estimate: a search bounds the largest potential from below only.
    message : str
    coef, intercept : ndarray of shape (K, n_features) and (K,)
        The primal machine on `feature_map` that bounds the objective from above.
    played : PlayedGame
        What another game may go on from.
    """

    feature_map: FeatureMap
    weights: np.ndarray
    history: list[dict[str, float]]
    dual: da.Array
    duality_gap: float
    certified: bool
    message: str
    coef: np.ndarray
    intercept: np.ndarray
    played: PlayedGame


@dataclass(frozen=True)
class KeptColumns:
    """Row columns and, where they are temporary, the folder that goes when nothing refers to it any more."""

    columns: RowColumns
    folder: Any = field(default=None, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return KeptColumns, (self.columns,)

    def lazy(self, name: str) -> da.Array:
        """One column of all rows as a Dask array, a chunk a block."""
        first = self.columns.values(name, 0)
        read = dask.delayed(_read_column, pure=False)
        parts = [
            da.from_delayed(read(self, name, index), (rows, *first.shape[1:]), first.dtype)
            for index, rows in enumerate(self.columns.block_rows)
            if rows
        ]
        return da.concatenate(parts)


@dataclass(frozen=True, eq=False)
class PlayedGame:
    """The end of a game, with the dual weights of its rows.

    Attributes
    ----------
    state : GameState or ExcessiveGapState
    columns : KeptColumns
    seed : int
    terms : dict
        What must be as it was for the game to go on, by name.
    """

    state: Any
    columns: KeptColumns
    seed: int
    terms: dict[str, Any]


def game_to_resume(learner: Any, dataset: Dataset) -> PlayedGame:
    """The game of a learner's last fit, which a warm start goes on with.

    Raises
    ------
    ValueError
        If there is none, or if its dual weights are not feasible for these rows and parameters.
    """
    played: PlayedGame | None = getattr(learner, "_played", None)
    if played is None:
        raise ValueError(
            "warm_start=True of solver='game' goes on with the dual weights of the last fit's rows, and there are "
            "none: that fit was no game, or was loaded from a file; set warm_start=False"
        )
    now = _terms(learner, dataset)
    if changed := [name for name, value in played.terms.items() if now[name] != value]:
        raise ValueError(
            "warm_start=True of solver='game' goes on with the dual weights of the last fit, and since then these have "
            f"changed: {', '.join(changed)}; set warm_start=False to begin anew"
        )
    return played


def _terms(learner: Any, dataset: Dataset) -> dict[str, str]:
    """What the dual weights of a game belong to."""
    names = ["family", "loss", "C", "projection", "dynamics", "scaling", "class_weight", "dtype"]
    names += ["patience", "validation_fraction"] if learner.patience is not None else []
    return {"the rows": dataset.fingerprint, **{name: repr(getattr(learner, name)) for name in names}}


def play_game(learner: Any, dataset: Dataset, scaler: Any, start: PlayedGame | None = None) -> None:
    """Algorithm 2 (or the excessive gap technique) on all rows of a dataset; ``learner._keep_result`` gets its result.

    Parameters
    ----------
    learner : FeatureLearner
        Its parameters are read by name; `family_` has its bandwidth, `seed_` is drawn.
    dataset : Dataset
        Of class labels.
    scaler : Scaler or None
    start : PlayedGame or None
        On these rows; its rounds count beside those to be played.

    Raises
    ------
    ValueError
        If the targets are no classes, the loss is none of a margin, or the features have phases; before any pass.

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", Algorithms 2 and 3, appendix A.
    """
    problem, driver = game_problem(learner, dataset, scaler, start), game_driver(learner)
    driver.init(problem)
    place, folder = _column_place(learner)
    columns = ColumnStore(place, driver.columns(problem), None if start is None else start.columns.columns)

    def keep(learner: Any, state: Any) -> None:
        kept = KeptColumns(RowColumns.open(place, dataset.source), folder)
        learner._keep_result(_result(problem, PlayedGame(state, kept, learner.seed_, _terms(learner, dataset))))

    learner._run(driver, problem, dataset, "game", columns, keep=keep)


def check_game(learner: Any) -> None:
    """Raise ValueError where the parameters describe no game; needs no rows."""
    name, family = type(learner).__name__, family_of(learner)
    if learner.loss not in (None, "hinge", "squared_hinge"):
        raise ValueError(
            f"solver='game' of {name} plays for loss='hinge' or loss='squared_hinge', got loss={learner.loss!r}; use "
            "solver='corrective'"
        )
    pairing = getattr(family, "pairing", None)
    if pairing == "phase":
        raise ValueError(
            f"the game answers with cosine-sine pairs, and {family!r} has cosines with a phase; use pairing='cos-sin'"
        )
    if learner.dynamics == "excessive-gap" and (pairing is not None or learner.projection != "exact"):
        raise ValueError(
            "dynamics='excessive-gap' needs a finite set of features (SphericalHarmonics, Coordinates, ArcCosine) and "
            f"projection='exact'; got family={family!r}, projection={learner.projection!r}. Use dynamics='no-regret'"
        )


def game_driver(learner: Any) -> Any:
    """The dynamics that a learner asks for."""
    return ExcessiveGapDriver() if learner.dynamics == "excessive-gap" else GameDriver()


def game_problem(learner: Any, dataset: Dataset, scaler: Any, start: PlayedGame | None = None) -> GameProblem:
    """The game that a learner's parameters describe."""
    if dataset.classes is None:
        raise ValueError(
            f"solver='game' of {type(learner).__name__} learns from class labels, and these targets are numbers "
            "(regression); use solver='corrective'"
        )
    check_game(learner)
    family = learner.family_
    pool = _pool_of(family, dataset.n_columns, learner)
    held_out = HeldOut(learner.validation_fraction, learner.seed_) if learner.patience is not None else None
    weights = learner._class_weights(dataset)
    targets = GameTargets(len(dataset.classes), weights, None if held_out is None else held_out.mask)
    options, first = _search_options(learner), learner.search_rows or _FIRST_SAMPLE
    return GameProblem(
        targets=targets,
        rules=_rules(learner, pool, None if start is None else start.state),
        total_weight=weight_of(dataset, weights),
        n_columns=dataset.n_columns,
        pool=None if pool is None else replace(pool, scaler=scaler),
        space=None
        if pool is not None
        else frequency_space_of(learner, family, dataset.n_columns, scaler, options, 0.0),
        seed=learner.seed_,
        search_rows=first,
        most_rows=min(dataset.n_rows, max(first, min(100_000, rows_within(_SAMPLE_BYTES, dataset.source)))),
        n_candidates=options.chains,
        dtype=learner.dtype,
        start=None if start is None else start.state,
    )


def _pool_of(family: Any, n_columns: int, learner: Any) -> FeatureMap | None:
    """The finite set of features of a family; None for cosine-sine pairs, whose frequencies are searched for in R^d."""
    if isinstance(family, FiniteFamily):
        return family.pool(n_columns, learner.dtype)
    if hasattr(family, "pairing"):
        return None
    return family.draw(_POOL_SIZE, n_columns, learner.seed_, learner.dtype)


def _rules(learner: Any, pool: FeatureMap | None, start: GameState | None) -> GameRules:
    most = kept_frequencies(type(learner).__name__, learner.n_features, learner.family_)
    before, missing = (0, most) if start is None else (len(start.history), max(0, most - len(start.weights)))
    rounds, per_round = learner.rounds, learner.features_per_round
    if per_round is not None:
        per_round = kept_frequencies(type(learner).__name__, per_round, learner.family_)
    if pool is not None:
        rounds, per_round = rounds or _POOL_ROUNDS, per_round or 1
    elif per_round is None:
        shared = -(-missing // rounds) if rounds else int(np.clip(most // _FEWEST_ROUNDS, 1, _MOST_PER_ROUND))
        per_round = max(1, shared)
    return GameRules(
        C=1.0 if learner.C is None else learner.C,
        loss=learner.loss or "hinge",
        rounds=before + (rounds or -(-missing // per_round)),
        per_round=per_round,
        most=most,
        tol=learner.tol,
        patience=learner.patience,
        projection=learner.projection,
    )


def _search_options(learner: Any) -> SearchOptions:
    names = ("chains", "steps", "stride", "noise", "sparse_share", "max_norm")
    given = {name: getattr(learner, name) for name in names if getattr(learner, name) is not None}
    return replace(SearchOptions(), **given)


def _column_place(learner: Any) -> tuple[str, Any]:
    """Where the row columns go: beside the checkpoint, else a temporary folder of this machine."""
    if learner.checkpoint is not None:
        return f"{str(learner.checkpoint).rstrip('/')}/game-columns", None
    folder = tempfile.TemporaryDirectory(prefix="dkl-game-", ignore_cleanup_errors=True)
    return f"{folder.name}/columns", folder


def _read_column(kept: KeptColumns, name: str, index: int) -> np.ndarray:
    return kept.columns.values(name, index)


def _result(problem: GameProblem, played: PlayedGame) -> GameResult:
    state = played.state
    if isinstance(state, ExcessiveGapState):
        feature_map, weights, coef = norm_machine(problem, state)
        intercept = state.intercepts
    else:
        feature_map, weights = dual_measure(problem, state)
        coef, intercept = machine_coefficients(state)
    message = state.message
    if len(weights) > problem.rules.most:
        heaviest = _heaviest(feature_map.groups, weights, problem.rules.most)
        share = float(weights[heaviest].sum())
        message += f"; {len(heaviest)} of {len(weights)} frequencies are kept, with {100 * share:.1f} % of the measure"
        weights = weights[heaviest] / share
        parts = coef.reshape(len(coef), feature_map.columns_a_frequency, -1)[:, :, heaviest]
        coef = parts.reshape(len(coef), -1) * np.sqrt(share)
        feature_map = feature_map.take(heaviest, np.sqrt(weights))
    dual = played.columns.lazy("mean")
    return GameResult(
        feature_map=feature_map,
        weights=weights,
        history=[dict(entry) for entry in state.history],
        dual=dual[:, 0] if dual.shape[1] == 1 else dual,
        duality_gap=float(state.history[-1]["relative_gap"]),
        certified=problem.pool is not None and problem.rules.projection == "exact",
        message=message,
        coef=coef,
        intercept=intercept,
        played=played,
    )


def _heaviest(groups: np.ndarray, weights: np.ndarray, room: int) -> np.ndarray:
    """Positions of the heaviest features that fit into `room`, those of one block together."""
    return choose_blocks(np.bincount(groups, weights), groups, room, 0, estimator="support").index

"""Pieces that the folds of a fit share are made once while there is room for them, with the same bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
import pytest

import dkl
from dkl.passes.loop import Run, run_pass
from dkl.passes.reading import PIECES
from dkl.protocols.block import Block
from dkl.protocols.records import Fold
from tests.passes.sources import Source, make_block, project

MADE: list[tuple[int, int]] = []


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    MADE.clear()
    PIECES.clear()


def made(block: Block, operands: dict[str, Any], number: int) -> np.ndarray | None:
    """The sums of half the rows of a block; the second half of a single row is none."""
    MADE.append((block.index, number))
    rows = np.array_split(block.X, 2)[number]
    return rows.sum(axis=0) if len(rows) else None


def times_epoch(piece: np.ndarray, operands: dict[str, Any], block: int, number: int) -> np.ndarray:
    return piece * (operands["epoch"] + block + 10 * number)


def added(state: np.ndarray, piece: np.ndarray, operands: dict[str, Any]) -> np.ndarray:
    # in this order: sums of other orders have other bits
    return 0.9 * state + piece


def fold(source: Source, epoch: int, name: str = "fit") -> Fold:
    operands = {"epoch": epoch}
    return Fold(
        "epoch",
        np.zeros(source.n_columns),
        added,
        made,
        lambda rows: 2,
        operands,
        piece_bytes=1000,
        kept_as=name,
        arrange=times_epoch,
    )


@dataclass(frozen=True)
class Epochs:
    epoch: int = 0
    total: Any = None


class EpochsDriver:
    def init(self, source: Source) -> Epochs:
        return Epochs()

    def request(self, source: Source, state: Epochs) -> list[Fold] | None:
        return None if state.epoch == 3 else [fold(source, state.epoch)]

    def step(self, source: Source, state: Epochs, results: Any) -> Epochs:
        return Epochs(state.epoch + 1, results[0] if state.total is None else state.total + results[0])


def by_definition(source: Source) -> np.ndarray:
    total = None
    for epoch in range(3):
        state = np.zeros(source.n_columns)
        for index, n_rows in enumerate(source.rows):
            rows = make_block(index, n_rows).X
            for number in range(2):
                part = np.array_split(rows, 2)[number]
                if len(part):
                    state = 0.9 * state + part.sum(axis=0) * (epoch + index + 10 * number)
        total = state if total is None else total + state
    assert total is not None
    return total


@pytest.mark.parametrize("cache", [0, 3_000, 1 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_epochs_have_the_same_bits_whatever_is_kept(cache: int, threads: int) -> None:
    source = Source((5, 1, 8, 4))
    with dask.config.set({"scheduler": "threads", "num_workers": threads, "dkl.cache-bytes": cache}):
        state, _ = Run().drive(EpochsDriver(), source, source)
    np.testing.assert_array_equal(state.total, by_definition(source))
    # Of eight pieces an epoch one is none and is asked for again. Blocks are kept before pieces are.
    if cache != 3_000:
        assert len(MADE) == (8 + 2 if cache else 24)


def test_pieces_are_forgotten_when_their_fit_is_done_and_when_another_begins() -> None:
    source = Source((5, 8))
    with dask.config.set({"scheduler": "threads", "num_workers": 1, "dkl.cache-bytes": 1 << 20}):
        first = run_pass(source, [fold(source, 0)]).results[0]
        again = run_pass(source, [fold(source, 0)])
        np.testing.assert_array_equal(again.results[0], first)
        # neither rows nor blocks go uncounted
        assert (again.stats.cache_hits, again.stats.rows, len(MADE)) == (2, 13, 4)
        run_pass(source, [fold(source, 0, "another")])
        assert len(MADE) == 8
        Run().drive(EpochsDriver(), source, source)
        assert PIECES.get("fit", (0, 0)) is None


def test_the_plan_counts_kept_pieces_after_blocks() -> None:
    source = Source((5, 8, 4))
    kept, fresh = fold(source, 0), replace(fold(source, 0), kept_as="")
    with dask.config.set({"dkl.cache-bytes": 2_500}):
        items = project(source, [kept], 1).items
        assert items["cache of blocks"] + items["cache of mapped pieces"] <= 2_500
    with dask.config.set({"dkl.cache-bytes": 1 << 20}):
        assert project(source, [kept], 1).items["cache of mapped pieces"] == 6_000
        assert project(source, [fresh], 1).items["cache of mapped pieces"] == 0


@pytest.mark.parametrize("kind", ["arrays", "store"])
def test_stochastic_fits_map_their_rows_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of all epochs but the first come mapped from memory: the model is that of rows mapped anew."""
    generator = np.random.default_rng(0)
    X, mapped = generator.normal(size=(3_000, 4)), []
    y = X[:, 0] * X[:, 1] > 0.0
    rows: Any = (X, y) if kind == "arrays" else (dkl.create_dataset("memory://kept_pieces.zarr", X, y), None)
    from dkl.linear import sums

    whole = sums.row_mapper

    def counted(X: Any, feature_map: Any, dtype: str) -> Any:
        mapped.append(len(X))
        return whole(X, feature_map, dtype)

    monkeypatch.setattr("dkl.linear.sums.row_mapper", counted)
    models = []
    for cache in (0, 1 << 28):
        mapped.clear()
        learner = dkl.RandomFeatures(n_features=20, random_state=0)
        machine = dkl.KernelClassifier(learner, solver="sgd", loss="hinge", alpha=1e-4, epochs=4, random_state=0)
        with dask.config.set({"dkl.cache-bytes": cache, "scheduler": "threads"}):
            models.append(machine.fit(*rows))
        assert sum(mapped) == (3_000 if cache else 4 * 3_000)
    np.testing.assert_array_equal(models[0].linear_.coef_, models[1].linear_.coef_)
    assert models[0].score(X, y) > 0.7


@pytest.mark.parametrize(("cache", "alpha"), [(600_000, "auto"), (1 << 28, 1e-3)])
def test_newton_steps_map_similarities_once(cache: int, alpha: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Similarities to landmarks that there is room for come from the first pass: the model has the bits of no room."""
    from dkl.kernels import landmark_tiles

    generator, mapped = np.random.default_rng(0), []
    X = generator.normal(size=(3_000, 4))
    y = X[:, 0] * X[:, 1] + 0.3 * generator.normal(size=3_000) > 0.0
    whole = landmark_tiles.NystromProduct.__call__

    def counted(self: Any, X: Any, room: Any = None) -> Any:
        mapped.append(X.shape[0])
        return whole(self, X, room)

    monkeypatch.setattr(landmark_tiles.NystromProduct, "__call__", counted)
    models, counts = [], []
    for room in (0, cache):
        mapped.clear()
        learner = dkl.NystromFeatures(n_features=50, scaling="standard", random_state=0)
        machine = dkl.KernelClassifier(learner, solver="newton", loss="log_loss", alpha=alpha, random_state=0)
        data = dkl.create_dataset(f"memory://similarities-{cache}-{alpha}-{room}.zarr", X, y, rows_a_block=1_000)
        with dask.config.set({"dkl.cache-bytes": room, "scheduler": "threads"}):
            models.append(machine.fit(data))
        counts.append(sum(mapped))
    np.testing.assert_array_equal(models[0].linear_.coef_, models[1].linear_.coef_)
    assert counts[1] < (0.5 if cache > 1 << 20 else 1.0) * counts[0]
    assert PIECES.get("any", (0, b"")) is None

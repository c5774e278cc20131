"""Numbers in place of free text: coordinates along the directions in which texts differ most, and scores.

A score is the prediction of a target by ridge regression on all directions of a text. The score of a row comes from a
regression on the rows of other folds, so that its own target does not enter it; folds and held-out rows are the same as
for target means (`dkl.encodings.target_means`). Scores follow from one pass of sums of products by fold.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from dkl.data.columns.free_text import DIRECTION
from dkl.data.dataset import Dataset
from dkl.data.ingest.column_rules import with_places
from dkl.data.ingest.encoding import TableEncoding
from dkl.data.sources.rows import RowSource
from dkl.data.view import View
from dkl.encodings.keys import dense_columns
from dkl.encodings.source import LearnedNumbers
from dkl.encodings.sums import TEXT_ROWS, text_sums
from dkl.encodings.target_means import CategoryFolds, FoldTotals, held_by_time, names_of_targets
from dkl.kernels.threads import one_blas_thread
from dkl.kernels.tiles import spans
from dkl.linear.judge import last_least
from dkl.linear.minibatches import HeldOut
from dkl.passes.loop import PassResult, Run
from dkl.protocols.records import Accumulator, BlockSum, Cost
from dkl.solvers.squared_sums import squared_losses

KEPT = (24, 8)
"""The numbers of directions of words, and of pairs of words, that become columns: those along which texts vary most."""
# The most scores of a text; with more targets or classes a text gets directions alone.
_MOST_SCORES = 32
# Candidates for the ridge penalty of a score, as multiples of the mean sum of squares along a direction.
_PENALTIES = (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)


def with_texts(dataset: Dataset, held_out: HeldOut, run: Run) -> Dataset:
    """The rows with scores and the first directions of free text; the dataset itself where it has none.

    Parameters
    ----------
    dataset : Dataset
    held_out : HeldOut
        The rows that are kept out of the fit to judge it: their targets enter the scores of no other row.
    run : Run
        Runs the pass over the rows. A `PlannedRun` only records it, and the scores of all texts are then 0.
    """
    if not _has_texts(dataset):
        return dataset
    folds, targets = CategoryFolds(held_out), _targets(dataset)
    sizes = [size for _, size in _places(dataset.encoding)]

    def weights_of(passed: PassResult) -> list[np.ndarray]:
        (sums,) = passed.results
        totals = FoldTotals(sums["weight"], sums["targets"], sums["squares"], held_by_time(dataset.source))
        return [score_weights(sums[f"gram {k}"], sums[f"answers {k}"], totals) for k in range(len(sizes))]

    weights = [np.zeros((folds.count + 1, size, len(targets))) for size in sizes]
    if targets:
        # later passes read the columns that replace the text, so that these blocks need not be cached
        records = [_record(dataset, folds)]
        weights = run.read(dataset.source, records, weights_of, weights, is_read_again=False)
    kept = [_kept_directions(each.sizes) for each in dataset.encoding.directions]
    mixings = [
        np.stack([np.hstack([each, of_text]) for each in of_folds])
        for of_folds, of_text in zip(weights, kept, strict=True)
    ]
    return _with_mixed_directions(dataset, mixings, folds if targets else None, targets)


def has_scores(encoding: Any) -> bool:
    """Whether an encoding has scores of free text, which depend on the targets of other rows."""
    rules = getattr(encoding, "rules", ())
    return any(rule.kind == "text" and not rule.categories[0].startswith(DIRECTION) for rule in rules)


def texts_like_fit(encoding: Any, dataset: Dataset) -> Dataset:
    """The dataset with its free text replaced by the columns of a fit; without texts the dataset itself.

    Raises
    ------
    ValueError
        If a text has other directions here than in the rows of fit, or if the fit had no such text.
    """
    if not _has_texts(dataset):
        return dataset
    fitted = getattr(encoding, "table", encoding)
    of_fit = {each.name: each for each in getattr(fitted, "directions", ())}
    mixings = []
    for own in dataset.encoding.directions:
        other = of_fit.get(own.name)
        if other is None or other.mixing is None or other.digest != own.digest:
            raise ValueError(
                f"column {own.name!r} holds free text, whose directions in {dataset.source.place} are not those of the "
                "rows of fit; hand these rows over as a data frame or as files (dkl predict), which the model encodes "
                "itself, or fit them"
            )
        mixings.append(other.mixing[None])
    rules = {rule.name: rule for rule in fitted.rules}
    names = [rules[own.name].categories for own in dataset.encoding.directions]
    return _with_columns(dataset, mixings, None, names)


def score_weights(gram: np.ndarray, answers: np.ndarray, totals: FoldTotals) -> np.ndarray:
    """The coefficients of the directions in the scores, for rows of each fold and, last, for new rows: (F + 1, K, T).

    Each target has the penalty of `_PENALTIES` with the least squared error over the rows of the folds that are not
    held out; of equally good ones the largest.

    Parameters
    ----------
    gram : ndarray of shape (F, K + 1, K + 1)
    answers : ndarray of shape (F, K + 1, T)
    totals : FoldTotals
    """
    count, width, n_targets = answers.shape
    others = [totals.others(fold) for fold in range(count)]
    with one_blas_thread():
        tried = np.array(
            [[_ridge(gram[part].sum(axis=0), answers[part].sum(axis=0), by) for part in others] for by in _PENALTIES]
        )
        losses = np.zeros((len(_PENALTIES), n_targets))
        for place, of_folds in enumerate(tried):
            for f in range(1, count):
                losses[place] += squared_losses(gram[f], answers[f].T, totals.squares[:, f], of_folds[f].T)
        best = last_least(losses)
        whole = [_ridge(gram.sum(axis=0), answers.sum(axis=0), by) for by in _PENALTIES]
    found = np.empty((count + 1, width - 1, n_targets))
    for t, place in enumerate(best.tolist()):
        found[:count, :, t] = tried[place, :, 1:, t]
        found[count, :, t] = whole[place][1:, t]
    return found


def _ridge(gram: np.ndarray, answers: np.ndarray, factor: float) -> np.ndarray:
    """Coefficients of ridge regression with an unpenalised intercept, (K + 1, T), the intercept first.

    Zeros where there are no rows, or all directions are 0.

    Parameters
    ----------
    gram : ndarray of shape (K + 1, K + 1)
        sum_i v_i z_i z_i^T over the rows, where z_i is 1 followed by the row's K directions, and v_i its weight.
    answers : ndarray of shape (K + 1, T)
        sum_i v_i z_i y_i^T.
    factor : float
        The penalty of a squared coefficient, in units of the mean diagonal entry of `gram` without the first.
    """
    weight, spread = gram[0, 0], float(np.trace(gram[1:, 1:]))
    if not weight > 0.0 or not spread > 0.0:
        return np.zeros_like(answers)
    penalty = np.full(len(gram), factor * spread / (len(gram) - 1))
    # practically none; it keeps the system solvable where the directions add up to a column of ones
    penalty[0] = 1e-12 * weight
    return np.asarray(np.linalg.solve(gram + np.diag(penalty), answers))


def _kept_directions(sizes: Sequence[int]) -> np.ndarray:
    """The 0-1 matrix (K, k) that selects the directions which become columns, the first `KEPT` of each part."""
    starts = np.append(0, np.cumsum(sizes)[:-1])
    stays = [start + np.arange(min(most, size)) for start, size, most in zip(starts, sizes, KEPT, strict=True)]
    return np.eye(sum(sizes))[:, np.concatenate(stays)]


def _has_texts(dataset: Dataset) -> bool:
    return isinstance(dataset.encoding, TableEncoding) and dataset.encoding.has_texts


def _places(encoding: TableEncoding) -> list[tuple[int, int]]:
    """For each column of free text its first encoded column, and its number of directions."""
    return [(start, len(rule.categories)) for rule, start in with_places(encoding.rules) if rule.kind == "text"]


def _targets(dataset: Dataset) -> list[str]:
    """Names of a text's scores, one for each class but the first or each target; none for more than `_MOST_SCORES`."""
    names = names_of_targets(dataset.schema, "score of", "score")
    return names if len(names) <= _MOST_SCORES else []


def _record(dataset: Dataset, folds: CategoryFolds) -> BlockSum:
    """The record of the pass that sums the products of all texts' directions by fold."""
    places, n_targets = _places(dataset.encoding), len(_targets(dataset))
    F = folds.count
    accumulators = {"weight": Accumulator((F,))}
    accumulators |= {name: Accumulator((n_targets, F)) for name in ("targets", "squares")}
    for k, (_, size) in enumerate(places):
        accumulators[f"gram {k}"] = Accumulator((F, size + 1, size + 1))
        accumulators[f"answers {k}"] = Accumulator((F, size + 1, n_targets))
    largest, products = max(size for _, size in places), sum((size + 1) ** 2 for _, size in places)

    def cost(rows: int, columns: int) -> Cost:
        of_rows = 3 * min(rows, TEXT_ROWS) * (largest + 1)
        # for sparse rows, the dense copy of the directions of one text
        dense = rows * largest * dataset.source.dtype.itemsize * dataset.source.is_sparse
        return Cost(flops=2.0 * rows * products, scratch_bytes=8 * (of_rows + products) + dense)

    operands = {"places": tuple(places), "folds": folds, "n_classes": dataset.schema.n_classes}
    return BlockSum("words of texts", text_sums, accumulators, operands, cost)


def _with_mixed_directions(
    dataset: Dataset, mixings: Sequence[np.ndarray], folds: CategoryFolds | None, targets: Sequence[str]
) -> Dataset:
    """The dataset with directions @ mixing for each text; a mixing is (F + 1, K, j), its last entry for new rows."""
    encoding = dataset.encoding
    names = [
        (*targets, *(f"{DIRECTION}{number}" for number in range(1, mixing.shape[2] - len(targets) + 1)))
        for mixing in mixings
    ]
    of_rows = [mixing[-1:] if folds is None else mixing[:-1] for mixing in mixings]
    made = _with_columns(dataset, of_rows, folds, names)
    directions = tuple(
        replace(each, mixing=mixing[-1]) for each, mixing in zip(encoding.directions, mixings, strict=True)
    )
    return made.with_rows(made.source, replace(made.schema, encoding=replace(made.encoding, directions=directions)))


def _with_columns(
    dataset: Dataset, mixings: Sequence[np.ndarray], folds: CategoryFolds | None, names: Sequence[tuple[str, ...]]
) -> Dataset:
    """The dataset with directions @ mixing in place of the K directions of each text.

    There is one mixing (F, K, j) and one tuple of j names for each text.
    """
    encoding, left = dataset.encoding, iter(names)
    rules = tuple(replace(rule, categories=next(left)) if rule.kind == "text" else rule for rule in encoding.rules)
    schema = dataset.schema.encoded_by(replace(encoding, rules=rules))
    places = TextPlaces(tuple(_places(encoding)), encoding.n_columns, tuple(mixing.shape[2] for mixing in mixings))
    return dataset.with_rows(View(dataset.source, TextNumbers(places, tuple(mixings), folds)), schema)


@dataclass(frozen=True)
class TextPlaces:
    """The places of the columns of directions in X, and the number of columns that replace each text.

    Parameters
    ----------
    starts : tuple of (int, int)
        The first column of each text in X, and its number of directions.
    n_columns : int
        The number of columns of X.
    widths : tuple of int
        The number of columns that replace each text.
    """

    starts: tuple[tuple[int, int], ...]
    n_columns: int
    widths: tuple[int, ...]

    @property
    def n_made(self) -> int:
        """The number of columns after the replacement."""
        return self.n_columns + sum(self.widths) - sum(size for _, size in self.starts)

    def with_numbers(self, X: Any, mixings: Sequence[np.ndarray], fold: np.ndarray | None) -> Any:
        """Rows (n, d) with directions @ mixing in place of the directions of each text, in the dtype of X.

        Parameters
        ----------
        mixings : sequence of ndarray of shape (F, K, j)
            One for each text.
        fold : ndarray of shape (n,) or None
            The mixing of each row; None is the first for all rows.
        """
        parts, end = [], 0
        for (start, size), mixing in zip(self.starts, mixings, strict=True):
            parts.append(X[:, end:start])
            end = start + size
            raw = dense_columns(X, start, end)
            made = np.empty((len(raw), mixing.shape[2]), X.dtype)
            with one_blas_thread():
                for f in range(len(mixing)):
                    of_fold = np.arange(len(raw)) if fold is None else np.flatnonzero(fold == f)
                    for part in spans(len(of_fold), TEXT_ROWS):
                        rows = of_fold[part]
                        made[rows] = raw[rows].astype(np.float64) @ mixing[f]
            parts.append(made)
        parts.append(X[:, end:])
        if sparse.issparse(X):
            return sparse.csr_array(sparse.hstack([sparse.csr_array(part) for part in parts], format="csr"))
        return np.hstack(parts)


class TextNumbers(LearnedNumbers):
    """Scores and directions in place of free text; `learned` is a mixing (F, K, j) for each text."""

    places: TextPlaces

    def read_nbytes(self, before: RowSource) -> int:
        """Peak bytes while a block is read, with `TEXT_ROWS` rows of the largest text in double precision."""
        rows, each = min(int(before.block_rows.max(initial=0)), TEXT_ROWS), before.dtype.itemsize + 8
        texts = zip(self.places.starts, self.places.widths, strict=True)
        largest = max(each * size + 8 * width for (_, size), width in texts)
        return super().read_nbytes(before) + rows * largest

    @cached_property
    def identity(self) -> str:  # type: ignore[override]
        digest = hashlib.sha256(repr((self.places, self.folds)).encode())
        for mixing in self.learned:
            digest.update(np.ascontiguousarray(mixing).data)
        return digest.hexdigest()

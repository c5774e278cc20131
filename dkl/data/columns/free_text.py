"""Free text as numbers: words and pairs of words, weighted by tf-idf and reduced to directions that a sample spans.

Words, and pairs of neighbouring words, are hashed by scikit-learn's `HashingVectorizer`; those that occur in two
sampled texts or more are kept, the most frequent ones where there are many. A text becomes the weights
(`TfidfTransformer`) of its words, of length 1, times directions of scikit-learn's `TruncatedSVD`, the right singular
vectors; so do its pairs, apart from the words: there are so many more of them that they would hide these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy import sparse

from dkl.data.ingest.staging import shuffle_keys

SAMPLE_TEXTS = 50_000
"""Directions are fitted on so many texts at most: those whose row numbers have the smallest hashes."""
DIRECTIONS = (96, 32)
"""Directions of words, and of pairs, that a store holds; a fit makes fewer columns of them (`dkl.encodings.texts`)."""
BUCKETS = 1 << 20
"""Of the hashes of words or pairs, of which as many are kept as go without many collisions."""
_MOST_TERMS = 1 << 14
_SAMPLE_BYTES = 64 * 2**20
# Of the order of the sampled rows, and of the vectors that the decomposition starts from.
_SEED = 0
# Texts that are encoded at a time: their n-grams take some hundred bytes a word.
_AT_ONCE = 1 << 13


@dataclass(frozen=True, eq=False)
class TextSample:
    """The texts of some rows: those whose numbers have the smallest hashes, however the table was cut.

    Parameters
    ----------
    keys : ndarray of shape (k,), uint64
        The hashes, ascending.
    texts : pyarrow.Array of k texts, of type large_string
    """

    keys: np.ndarray
    texts: pa.Array

    @classmethod
    def of(cls, texts: pa.ChunkedArray, first_row: int) -> TextSample:
        """The sample of a column; missing texts are none of it."""
        keys = shuffle_keys(np.arange(first_row, first_row + len(texts)), _SEED)
        there = np.flatnonzero(texts.is_valid().to_numpy())
        return cls(keys[there], texts.drop_null().cast(pa.large_string()).combine_chunks()).smallest()

    @property
    def holds_words(self) -> bool:
        """Whether a text holds a word of two letters or digits, as scikit-learn's vectorizer takes words."""
        return bool(pc.any(pc.match_substring_regex(self.texts, r"[\p{L}\p{N}_]{2}")).as_py())

    def smallest(self) -> TextSample:
        """No more texts than a sample has, and no more bytes."""
        order = np.argsort(self.keys)[:SAMPLE_TEXTS]
        texts = self.texts.take(pa.array(order))
        # what is left out here would be left out of any larger sample as well
        ends = np.cumsum(pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False))
        kept = max(int(np.searchsorted(ends, _SAMPLE_BYTES, side="right")), 1)
        return TextSample(self.keys[order][:kept], texts.slice(0, kept))

    def merge(self, other: TextSample) -> TextSample:
        """The sample of both stretches of rows."""
        return TextSample(
            np.concatenate([self.keys, other.keys]), pa.concat_arrays([self.texts, other.texts])
        ).smallest()


@dataclass(frozen=True, eq=False)
class WordDirections:
    """How the words of texts, or pairs of neighbouring ones, become numbers.

    Parameters
    ----------
    n : {1, 2}
        Words that go together.
    buckets : ndarray of shape (m,), int32
        The hashes of those that count, ascending.
    idf : ndarray of shape (m,), float64
        Their weights: log((1 + n) / (1 + f)) + 1, where f of n sampled texts hold them.
    components : ndarray of shape (m, K), float32
        The directions.
    """

    n: int
    buckets: np.ndarray
    idf: np.ndarray
    components: np.ndarray

    @classmethod
    def fitted(cls, texts: pa.Array, n: int) -> WordDirections:
        """Those of sampled texts."""
        there = _hashed(texts, n)
        frequency = np.bincount(there.indices, minlength=BUCKETS)
        # what a single text holds says nothing of others; where all are such, they are all that there is
        known = np.flatnonzero(frequency >= (2 if (frequency >= 2).any() else 1))
        if len(known) > _MOST_TERMS:
            known = np.sort(known[np.argsort(-frequency[known], kind="stable")[:_MOST_TERMS]])
        idf = np.log((1.0 + there.shape[0]) / (1.0 + frequency[known])) + 1.0
        empty = cls(n, known.astype(np.int32), idf, np.empty((len(known), 0), np.float32))
        found = _directions(empty.weighted(texts), DIRECTIONS[n - 1])
        return replace(empty, components=found.astype(np.float32))

    def validate(self) -> None:
        """Raise ValueError unless the arrays go together."""
        known = self.buckets
        in_order = known.dtype.kind == "i" and bool(np.all(np.diff(known) > 0))
        in_range = bool(np.all((known >= 0) & (known < BUCKETS))) and self.n in (1, 2)
        lengths = {len(known), len(self.idf), len(self.components)}
        is_finite = bool(np.isfinite(self.idf).all() and np.isfinite(self.components).all())
        if not (in_order and in_range and len(lengths) == 1 and self.components.ndim == 2 and is_finite):
            raise ValueError("the directions of free text are damaged: their arrays do not go together")

    def weighted(self, texts: pa.Array) -> sparse.csr_array:
        """The tf-idf weights of the words that count, each row of length 1 or 0: (n, m) float64."""
        there = _hashed(texts, self.n)
        place = np.full(BUCKETS, -1, np.int32)
        place[self.buckets] = np.arange(len(self.buckets))
        columns = place[there.indices]
        is_known = columns >= 0
        indptr = np.append(0, np.cumsum(is_known))[there.indptr]
        columns = columns[is_known]
        weights = self.idf[columns]
        rows = np.repeat(np.arange(there.shape[0]), np.diff(indptr))
        weights = weights / np.sqrt(np.bincount(rows, weights**2, minlength=there.shape[0]))[rows]
        return sparse.csr_array((weights, columns, indptr), shape=(there.shape[0], len(self.buckets)))

    def numbers(self, texts: pa.Array) -> np.ndarray:
        """The numbers of texts along the directions: (n, K) float64."""
        return np.asarray(self.weighted(texts) @ self.components, np.float64)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, as a store keeps them."""
        return {f"{self.n}-{part}": getattr(self, part) for part in ("buckets", "idf", "components")}


@dataclass(frozen=True, eq=False)
class TextDirections:
    """How the texts of one column become numbers.

    Parameters
    ----------
    name : str
        The column.
    parts : tuple of WordDirections
        Of words, and of pairs.
    mixing : ndarray of shape (K, j), float64, or None
        What a fit makes of the numbers along all directions; None leaves them as they are.
    """

    name: str
    parts: tuple[WordDirections, ...]
    mixing: np.ndarray | None = None

    @classmethod
    def fitted(cls, name: str, sample: TextSample) -> TextDirections:
        """Those of a column, by a sample of its texts."""
        return cls(name, tuple(WordDirections.fitted(sample.texts, n) for n in (1, 2)))

    def validate(self) -> None:
        """Raise ValueError unless the arrays go together."""
        if self.mixing is not None and (len(self.mixing) != self.n_raw or not np.isfinite(self.mixing).all()):
            raise ValueError(f"the directions of column {self.name!r} are damaged: their arrays do not go together")

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many directions each part has."""
        return tuple(part.components.shape[1] for part in self.parts)

    @property
    def n_raw(self) -> int:
        """K, the numbers along all directions."""
        return sum(self.sizes)

    @property
    def n_columns(self) -> int:
        """The numbers that a text becomes."""
        return self.n_raw if self.mixing is None else self.mixing.shape[1]

    @cached_property
    def digest(self) -> str:
        """Equal for equal directions, whatever a fit makes of them."""
        found = hashlib.sha256(self.name.encode())
        for values in self.arrays().values():
            found.update(np.ascontiguousarray(values).data)
        return found.hexdigest()

    def matrices(self) -> list[np.ndarray]:
        """Of each part (m, j) float64: what a fit makes of its directions, by word or pair."""
        mixing = np.eye(self.n_raw) if self.mixing is None else self.mixing
        ends = np.cumsum(self.sizes)
        return [
            part.components.astype(np.float64) @ mixing[end - size : end]
            for part, size, end in zip(self.parts, self.sizes, ends, strict=True)
        ]

    def numbers(self, texts: pa.Array) -> np.ndarray:
        """The numbers of texts, (n, j) float64: zeros where a text is missing, or none of its words counts."""
        pieces = [texts.slice(first, _AT_ONCE) for first in range(0, len(texts), _AT_ONCE)]
        raw = [np.hstack([part.numbers(piece) for part in self.parts]) for piece in pieces]
        whole = np.concatenate(raw) if raw else np.empty((0, self.n_raw))
        return whole if self.mixing is None else whole @ self.mixing

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TextDirections) or self.digest != other.digest:
            return False
        return np.array_equal(_or_empty(self.mixing), _or_empty(other.mixing))

    def __hash__(self) -> int:
        return hash(self.digest)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, as a store keeps them."""
        return {name: values for part in self.parts for name, values in part.arrays().items()}


def _or_empty(mixing: np.ndarray | None) -> np.ndarray:
    return np.empty((0, 0)) if mixing is None else mixing


@cache
def hashing(n: int) -> Any:
    """scikit-learn's vectorizer of words or pairs; it is loaded where a table holds free text."""
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(n_features=BUCKETS, ngram_range=(n, n), binary=True, norm=None, alternate_sign=False)


def _hashed(texts: pa.Array, n: int) -> sparse.csr_array:
    """Which hashed words, or pairs, each text holds: (n, buckets)."""
    return sparse.csr_array(hashing(n).transform(pc.fill_null(texts, "").to_pylist()))


def _directions(rows: sparse.csr_array, most: int) -> np.ndarray:
    """The right singular vectors of sampled rows, (m, K); those of the largest singular values first."""
    from sklearn.decomposition import TruncatedSVD
    from threadpoolctl import threadpool_limits

    size = min(most, *rows.shape)
    if rows.shape[1] < 2:
        # a single word is its own direction, of which scikit-learn has none
        return np.eye(rows.shape[1])
    # several threads of BLAS would round otherwise than one
    # texts that all hold the same words have no variance, of which scikit-learn works out shares that nobody asks for
    with threadpool_limits(limits=1, user_api="blas"), np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(TruncatedSVD(size, random_state=_SEED).fit(rows).components_.T)


def directions_from(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> tuple[TextDirections, ...]:
    """Those that a store keeps, of columns in their order."""

    def part(place: int, n: int) -> WordDirections:
        return WordDirections(n, *(arrays[f"{place}-{n}-{name}"] for name in ("buckets", "idf", "components")))

    return tuple(TextDirections(name, (part(place, 1), part(place, 2))) for place, name in enumerate(names))


def stored_arrays(directions: Sequence[TextDirections]) -> dict[str, np.ndarray]:
    """The arrays of several columns by name, for a store."""
    return {
        f"{place}-{part}": values for place, each in enumerate(directions) for part, values in each.arrays().items()
    }

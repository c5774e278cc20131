"""Free text as numbers: tf-idf weights of words and of pairs of words, projected on the main directions of a sample.

Words, and pairs of neighbouring words, are hashed by scikit-learn's `HashingVectorizer`. Those that occur in at least
two sampled texts are kept, at most `_MOST_TERMS`, the most frequent ones. The tf-idf weights of a text's words
(`TfidfTransformer`), scaled to length 1, are multiplied by the right singular vectors of the sample's weights
(`TruncatedSVD`). Pairs are treated in the same way, separately: they are so many more that they would outweigh words.
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
"""Largest number of texts that directions are fitted to: those whose row numbers have the smallest hashes."""
DIRECTIONS = (96, 32)
"""Number of directions of words, and of pairs, in a store; a fit reduces them (`dkl.encodings.texts`)."""
DIRECTION = "direction "
"""Prefix of the names of free text's encoded columns, followed by a number from 1."""
BUCKETS = 1 << 20
"""Number of hash values of words or pairs: 64 times `_MOST_TERMS`, so that few of the kept terms collide."""
_MOST_TERMS = 1 << 14
_SAMPLE_BYTES = 64 * 2**20
# Seed of the sample's row hashes, and of the initial vectors of the decomposition.
_SEED = 0
# Number of texts encoded at a time: their n-grams take about a hundred bytes for each word.
_AT_ONCE = 1 << 13
# BLAS uses other kernels for few rows and ragged edges, whose last bits differ: with rows in whole tiles the numbers of
# a text do not depend on the texts around it.
_TILE = 256


@dataclass(frozen=True, eq=False)
class TextSample:
    """The texts of the rows whose numbers have the smallest hashes, independent of how the table was cut into batches.

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
        """The sample of a column, without missing texts."""
        keys = shuffle_keys(np.arange(first_row, first_row + len(texts)), _SEED)
        there = np.flatnonzero(texts.is_valid().to_numpy())
        return cls(keys[there], texts.drop_null().cast(pa.large_string()).combine_chunks()).smallest()

    @property
    def holds_words(self) -> bool:
        """Whether any text contains two adjacent letters or digits: a word for scikit-learn's vectorizer."""
        return bool(pc.any(pc.match_substring_regex(self.texts, r"[\p{L}\p{N}_]{2}")).as_py())

    def smallest(self) -> TextSample:
        """The texts with the smallest hashes, at most `SAMPLE_TEXTS` texts of `_SAMPLE_BYTES` bytes in all."""
        order = np.argsort(self.keys)[:SAMPLE_TEXTS]
        texts = self.texts.take(pa.array(order))
        # texts left out here would also be left out of the sample of more rows
        ends = np.cumsum(pc.fill_null(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False))
        kept = max(int(np.searchsorted(ends, _SAMPLE_BYTES, side="right")), 1)
        return TextSample(self.keys[order][:kept], texts.slice(0, kept))

    def merge(self, other: TextSample) -> TextSample:
        """The sample of the rows of both."""
        return TextSample(
            np.concatenate([self.keys, other.keys]), pa.concat_arrays([self.texts, other.texts])
        ).smallest()


@dataclass(frozen=True, eq=False)
class WordDirections:
    """The projection of texts on the main directions of their words, or of pairs of neighbouring words.

    Parameters
    ----------
    n : {1, 2}
        Number of words of a term: 1 for words, 2 for pairs.
    buckets : ndarray of shape (m,), int32
        The hash values of the kept terms, ascending.
    idf : ndarray of shape (m,), float64
        Their weights: log((1 + n) / (1 + f)) + 1 for a term in f of n sampled texts.
    components : ndarray of shape (m, K), float32
        The directions, one a column.
    """

    n: int
    buckets: np.ndarray
    idf: np.ndarray
    components: np.ndarray

    @classmethod
    def fitted(cls, texts: pa.Array, n: int) -> WordDirections:
        """The main directions of the tf-idf weights of sampled texts, for terms of `n` words."""
        there = _hashed(texts, n)
        frequency = np.bincount(there.indices, minlength=BUCKETS)
        # terms that occur in a single text say nothing about others, and are left out unless all terms do
        known = np.flatnonzero(frequency >= (2 if (frequency >= 2).any() else 1))
        if len(known) > _MOST_TERMS:
            known = np.sort(known[np.argsort(-frequency[known], kind="stable")[:_MOST_TERMS]])
        idf = np.log((1.0 + there.shape[0]) / (1.0 + frequency[known])) + 1.0
        empty = cls(n, known.astype(np.int32), idf, np.empty((len(known), 0), np.float32))
        found = _directions(empty.weighted(texts), DIRECTIONS[n - 1])
        return replace(empty, components=found.astype(np.float32))

    def validate(self) -> None:
        """Raise ValueError unless shapes and values of the arrays are consistent."""
        known = self.buckets
        in_order = known.dtype.kind == "i" and bool(np.all(np.diff(known) > 0))
        in_range = bool(np.all((known >= 0) & (known < BUCKETS))) and self.n in (1, 2)
        lengths = {len(known), len(self.idf), len(self.components)}
        is_finite = bool(np.isfinite(self.idf).all() and np.isfinite(self.components).all())
        if not (in_order and in_range and len(lengths) == 1 and self.components.ndim == 2 and is_finite):
            raise ValueError("the directions of free text are damaged: their arrays do not go together")

    def weighted(self, texts: pa.Array) -> sparse.csr_array:
        """The tf-idf weights of the kept terms, each row of length 1 or 0: (n, m) float64."""
        from sklearn.preprocessing import normalize

        there = _hashed(texts, self.n)[:, self.buckets]
        weights = sparse.csr_array((self.idf[there.indices], there.indices, there.indptr), shape=there.shape)
        return sparse.csr_array(normalize(weights, copy=False))

    def numbers(self, texts: pa.Array) -> np.ndarray:
        """The coordinates of texts along the directions: (n, K) float64."""
        return np.asarray(self.weighted(texts) @ self.components, np.float64)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays by name, as a store keeps them."""
        return {f"{self.n}-{part}": getattr(self, part) for part in ("buckets", "idf", "components")}


@dataclass(frozen=True, eq=False)
class TextDirections:
    """The projection of the texts of one column.

    Parameters
    ----------
    name : str
        Name of the column.
    parts : tuple of WordDirections
        The directions of words, and of pairs.
    mixing : ndarray of shape (K, j), float64, or None
        Matrix by which a fit multiplies the coordinates along all directions; None for the identity.
    """

    name: str
    parts: tuple[WordDirections, ...]
    mixing: np.ndarray | None = None

    @classmethod
    def fitted(cls, name: str, sample: TextSample) -> TextDirections:
        """The directions of a column from a sample of its texts."""
        return cls(name, tuple(WordDirections.fitted(sample.texts, n) for n in (1, 2)))

    def validate(self) -> None:
        """Raise ValueError unless shapes and values of the arrays are consistent."""
        if self.mixing is not None and (len(self.mixing) != self.n_raw or not np.isfinite(self.mixing).all()):
            raise ValueError(f"the directions of column {self.name!r} are damaged: their arrays do not go together")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of directions of each part."""
        return tuple(part.components.shape[1] for part in self.parts)

    @property
    def n_raw(self) -> int:
        """K, the number of directions of all parts."""
        return sum(self.sizes)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the coordinates along all directions."""
        return tuple(f"{DIRECTION}{number}" for number in range(1, self.n_raw + 1))

    @property
    def n_columns(self) -> int:
        """The number of encoded columns."""
        return self.n_raw if self.mixing is None else self.mixing.shape[1]

    @cached_property
    def digest(self) -> str:
        """A hash of the directions, independent of `mixing`."""
        found = hashlib.sha256(self.name.encode())
        for values in self.arrays().values():
            found.update(np.ascontiguousarray(values).data)
        return found.hexdigest()

    def matrices(self) -> list[np.ndarray]:
        """For each part the matrix (m, j), float64, by which tf-idf weights become encoded columns."""
        mixing = np.eye(self.n_raw) if self.mixing is None else self.mixing
        ends = np.cumsum(self.sizes)
        return [
            part.components.astype(np.float64) @ mixing[end - size : end]
            for part, size, end in zip(self.parts, self.sizes, ends, strict=True)
        ]

    def numbers(self, texts: pa.Array) -> np.ndarray:
        """The encoded columns of texts, (n, j) float64: zeros for missing texts and those without kept terms."""
        found = np.empty((len(texts), self.n_columns))
        for first in range(0, len(texts), _AT_ONCE):
            piece = texts.slice(first, _AT_ONCE)
            raw = np.hstack([part.numbers(piece) for part in self.parts])
            if self.mixing is not None:
                raw = np.pad(raw, ((0, -len(piece) % _TILE), (0, 0))) @ self.mixing
            found[first : first + len(piece)] = raw[: len(piece)]
        return found

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
    """scikit-learn's vectorizer of words or pairs, imported only for tables with free text."""
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(n_features=BUCKETS, ngram_range=(n, n), binary=True, norm=None, alternate_sign=False)


def _hashed(texts: pa.Array, n: int) -> sparse.csr_array:
    """1 for each hashed word, or pair, of each text: (n, `BUCKETS`)."""
    return sparse.csr_array(hashing(n).transform(pc.fill_null(texts, "").to_pylist()))


def _directions(rows: sparse.csr_array, most: int) -> np.ndarray:
    """The right singular vectors of sampled rows with the largest singular values, in descending order: (m, K)."""
    from sklearn.decomposition import TruncatedSVD
    from threadpoolctl import threadpool_limits

    size = min(most, *rows.shape)
    if rows.shape[1] < 2:
        # TruncatedSVD needs two columns; a single term is its own direction
        return np.eye(rows.shape[1])
    # rounding depends on the number of BLAS threads; scikit-learn divides by the total variance, which is 0 for texts
    # with the same words, to compute shares that are not used here
    with threadpool_limits(limits=1, user_api="blas"), np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(TruncatedSVD(size, random_state=_SEED).fit(rows).components_.T)


def directions_from(arrays: Mapping[str, np.ndarray], names: Sequence[str]) -> tuple[TextDirections, ...]:
    """The directions of columns, in their order, from the arrays of a store (`stored_arrays`)."""

    def part(place: int, n: int) -> WordDirections:
        return WordDirections(n, *(arrays[f"{place}-{n}-{name}"] for name in ("buckets", "idf", "components")))

    return tuple(TextDirections(name, (part(place, 1), part(place, 2))) for place, name in enumerate(names))


def stored_arrays(directions: Sequence[TextDirections]) -> dict[str, np.ndarray]:
    """The arrays of the directions of several columns, by their names in a store."""
    return {
        f"{place}-{part}": values for place, each in enumerate(directions) for part, values in each.arrays().items()
    }

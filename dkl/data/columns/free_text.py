"""Free text as numbers: word n-grams, weighted by tf-idf and reduced to directions that a sample of the texts spans.

The n-grams of one and two words are hashed by scikit-learn's `HashingVectorizer`; those that occur in two sampled texts
or more are kept, the most frequent ones where there are many. A text becomes the vector of their weights
(1 + log n) idf, of length 1, times the directions of scikit-learn's `TruncatedSVD`: the right singular vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.ingest.staging import shuffle_keys

SAMPLE_TEXTS = 50_000
"""Directions are fitted on so many texts at most: those whose row numbers have the smallest hashes."""
DIRECTIONS = 128
"""Directions that a store holds of a text; a fit makes fewer columns of them, see `dkl.encodings.texts`."""
# Different n-grams share a bucket in one of a hundred cases at most: there are as many buckets, and so many n-grams are
# kept.
_BUCKETS, _MOST_TERMS = 1 << 20, 1 << 14
_SAMPLE_BYTES = 64 * 2**20
# Of the order of the sampled rows.
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
        return cls(keys[there], pa.concat_arrays(texts.drop_null().cast(pa.large_string()).chunks)).smallest()

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

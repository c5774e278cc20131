"""Peaks of a Fourier potential on rows in memory: many chains climb it at once, and the best points are told apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from dkl.features.frequencies import stream
from dkl.kernels.device import Device, array_module, normal_source, on_host, rows_on
from dkl.methods.frequency_search.ascent import Judge, Slope, langevin, polished, quasi_newton, row_norms
from dkl.methods.frequency_search.column_subsets import column_scales, neighbourhoods
from dkl.methods.frequency_search.landscape import Landscape, landscape

Method = Literal["langevin", "quasi-newton"]


@dataclass(frozen=True)
class SearchOptions:
    """How peaks are searched; lengths follow the data, so that one set of numbers serves all of them.

    Parameters
    ----------
    chains : int
        Points that climb at once.
    steps : int
        Evaluations of potential and gradient by each.
    stride : float
        Length of the first step: times sqrt(d) / sigma for chains over all columns, twice that number on standardised
        columns for the others. Later steps are shorter, down to zero (quasi-Newton: the longest step).
    noise : float
        Length of the Langevin noise relative to the step (1 is the paper's rule); 0 climbs without noise.
    sparse_share : float
        Share of the chains that live on a few columns.
    near_share : float
        Share of the other chains that live on 10 to 150 columns that go together, of dense rows with that many.
    near_steps : int
        Evaluations by each of these, which climb fewer ways.
    polish : int
        Evaluations after that, of plain ascent that only accepts what is higher.
    max_norm : float or None
        No frequency becomes longer.
    method : {"langevin", "quasi-newton"}
        Gradient steps of given length with noise, or limited-memory BFGS steps.
    start : float
        Variance of the starts over all columns, times 1 / sigma^2 a column (the paper takes 1.5).
    tries : int
        Random points of which each chain starts from the highest.
    max_columns : int
        Sparse chains live on 1 to so many columns.
    held_out : float
        Share of the rows that no chain climbs on: the potential there tells which point of a chain is its best, so that
        a search that only fits its rows does not get far. 0 takes all rows for both.
    device : {"cpu", "gpu"}
        Where to climb.
    """

    chains: int = 100
    steps: int = 20
    stride: float = 0.1
    noise: float = 0.0
    sparse_share: float = 0.5
    near_share: float = 0.0
    near_steps: int = 14
    polish: int = 0
    max_norm: float | None = None
    method: Method = "langevin"
    start: float = 0.5
    tries: int = 1
    max_columns: int = 3
    held_out: float = 0.0
    device: Device = "cpu"

    @property
    def evaluations(self) -> int:
        """Of potential and gradient by each chain, in all."""
        return self.steps + self.polish + (self.tries > 1) * self.tries


@dataclass(frozen=True, eq=False)
class Peaks:
    """What a search found, one entry a chain.

    Parameters
    ----------
    frequencies : ndarray of shape (c, d), float32
        The highest point that each chain visited.
    potentials : ndarray of shape (c,), float64
        On the rows of the search, or on the held-out ones among them, put on the same scale.
    supports : ndarray of shape (c, d), bool, or None
        The columns that each frequency lives on; None where all of them live on all.
    """

    frequencies: np.ndarray
    potentials: np.ndarray
    supports: np.ndarray | None

    def take(self, index: np.ndarray) -> Peaks:
        """The chosen ones alone, in the order of `index`."""
        supports = None if self.supports is None else self.supports[index]
        return Peaks(self.frequencies[index], self.potentials[index], supports)


def search_peaks(
    X: Any,
    S: Any,
    sigma: float,
    options: SearchOptions,
    seed: int,
    *,
    extra_starts: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> Peaks:
    """The highest point of v(w) = sum_k |sum_i S[i, k] exp(i w.x_i)|^2 that each of many chains visits.

    Parameters
    ----------
    X : ndarray, csr_array or CuPy array of shape (n, d)
        Scaled rows of a sample. Adding a constant to a column changes nothing.
    S : array of shape (n, K) or (n,)
        Weight columns; their scale only scales v.
    sigma : float
        Bandwidth: the median distance between rows, say.
    options : SearchOptions
    seed : int
    extra_starts : ndarray of shape (e, d) or None
        Further chains, which start from these frequencies.
    weight : ndarray of shape (n,) or None
        Repetitions of each row, which S has already: columns are standardised by them. None means one each.

    Returns
    -------
    Peaks
        First the chains over all columns, then `extra_starts`, those on columns that go together and those on a few;
        not yet told apart.

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", Algorithm 1 and appendix A.1. The step has a given length
    instead of following the gradient's, which differs by orders of magnitude between data sets; both step and noise
    shrink to zero.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.methods.frequency_search.peak_search import SearchOptions, distinct_peaks, search_peaks
    >>> X = np.random.default_rng(0).standard_normal((2_000, 3))
    >>> s = np.sign(np.sin(3.0 * X[:, 1])) / len(X)
    >>> found = search_peaks(X, s, 2.4, SearchOptions(polish=10), seed=0)
    >>> best = distinct_peaks(found.frequencies, found.potentials, 1)
    >>> np.abs(found.frequencies[best]).round(0)
    array([[0., 3., 0.]], dtype=float32)
    """
    rows = _Rows.split(rows_on(X, options.device), S, options.held_out, weight)
    few = _few_columns(rows, options, seed)
    near = _near_columns(rows, options, seed, options.chains - _size(few))
    n_dense = options.chains - _size(few) - _size(near)
    groups = [_all_columns(rows, sigma, options, seed, n_dense, extra_starts), near, few]
    found = [_climbed(group, options, seed) for group in groups if group is not None]
    frequencies = np.concatenate([_written_out(group, W, X.shape[1]) for group, W, _ in found])
    heights = np.concatenate([v for _, _, v in found])
    narrow = near is not None or few is not None
    supports = np.concatenate([_support(group, X.shape[1]) for group, _, _ in found]) if narrow else None
    return Peaks(frequencies, heights, supports)


def distinct_peaks(
    frequencies: np.ndarray, potentials: np.ndarray, k: int, cosine: float = 0.9, length: float = 0.2
) -> np.ndarray:
    """The k highest peaks of which no two are nearly the same; w and -w are one.

    Parameters
    ----------
    frequencies : ndarray of shape (c, d)
    potentials : ndarray of shape (c,)
    k : int
    cosine, length : float
        Two are the same where the cosine between their directions is at least `cosine` in size and their lengths differ
        by at most this share of that of the higher one.

    Returns
    -------
    ndarray of int64
        At most k positions, highest first.
    """
    norms = np.linalg.norm(frequencies.astype(np.float64), axis=1)
    kept: list[int] = []
    for j in np.argsort(-np.asarray(potentials), kind="stable"):
        if len(kept) == k:
            break
        others = norms[kept]
        along = np.abs(frequencies[kept] @ frequencies[j]) >= cosine * others * norms[j]
        if not np.any(along & (np.abs(norms[j] - others) <= length * others)):
            kept.append(int(j))
    return np.array(kept, dtype=np.int64)


def sample_size(n_candidates: int, accuracy: float = 0.05, failure: float = 0.05) -> int:
    """Rows that suffice for the normalised potentials of so many fixed candidates to be right within `accuracy`.

    n >= 8 log(2 K / failure) / accuracy^2: theorem 4.4 of Bullins, Zhang & Zhang 2018 for K candidates that do not
    depend on the rows. One row moves a potential, divided by n^2 and with weights of at most 1 in size, by 4 / n at
    most, so this is McDiarmid's inequality and a union bound. (Beside it, v / n^2 is too high by (1 - v) / n in the
    mean, which `pair_potentials` takes off.)

    Parameters
    ----------
    n_candidates : int
    accuracy : float
    failure : float
        Probability that one of the potentials is further off.

    Raises
    ------
    ValueError
        If one of them has no meaning.
    """
    if not (n_candidates >= 1 and accuracy > 0.0 and 0.0 < failure < 1.0):
        raise ValueError(
            "a sample size needs n_candidates >= 1, accuracy > 0 and 0 < failure < 1; got "
            f"n_candidates={n_candidates!r}, accuracy={accuracy!r}, failure={failure!r}"
        )
    return int(np.ceil(8.0 * np.log(2.0 * n_candidates / failure) / accuracy**2))


def pair_potentials(potentials: np.ndarray, absolutes: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Normalised potentials over pairs of different rows: (v - sum s^2) / sum over i != j of |s_i s_j|.

    A potential of n rows includes the n pairs of a row with itself, which no frequency changes: relative to the others
    they weigh more in a smaller sample. Without them the numbers of a sample and of all rows can be compared.

    Parameters
    ----------
    potentials : ndarray of shape (c,)
    absolutes, squares : ndarray of shape (K,)
        sum |s_ik| and sum s_ik^2 over the rows.

    Returns
    -------
    ndarray of shape (c,)
        At most 1.
    """
    pairs = np.sum(np.square(absolutes) - squares)
    return (potentials - np.sum(squares)) / max(float(pairs), np.finfo(np.float64).tiny)


def grown_sample(n_sampled: int, sampled: np.ndarray, verified: np.ndarray, *, most: int, least: float = 0.5) -> int:
    """Rows of the next search: twice as many where the peaks of this one do not hold on all rows.

    Parameters
    ----------
    n_sampled : int
        Rows of this search.
    sampled, verified : ndarray of shape (k,)
        Pair potentials of its best peaks, on its own rows and on all.
    most : int
        No more than these.
    least : float
        The share of the sampled potential that the median peak must keep.
    """
    held = np.median(verified) if len(verified) else 0.0
    promised = np.median(sampled) if len(sampled) else 0.0
    return min(most, n_sampled if held >= least * promised else 2 * n_sampled)


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows that chains climb on, and those that judge them (None: the same)."""

    X: Any
    S: Any
    judges: tuple[Any, Any] | None
    scale: float = 1.0
    weight: np.ndarray | None = None

    @classmethod
    def split(cls, X: Any, S: Any, held_out: float, weight: np.ndarray | None) -> _Rows:
        """The last rows judge; potentials there are put on the scale of all rows."""
        S = np.asarray(S, dtype=np.float64)
        n_climbed = len(S) - round(held_out * len(S))
        if n_climbed == len(S):
            return cls(X, S, None, weight=weight)
        theirs = np.abs(S[n_climbed:]).sum()
        scale = float(np.abs(S).sum() / theirs) ** 2 if theirs > 0.0 else 1.0
        climbed = None if weight is None else weight[:n_climbed]
        return cls(X[:n_climbed], S[:n_climbed], (X[n_climbed:], S[n_climbed:]), scale, climbed)

    @cached_property
    def scales(self) -> np.ndarray:
        """How far each column varies."""
        return column_scales(self.X, self.weight)

    def judge(self, columns: np.ndarray | None = None) -> Judge | None:
        """W -> potentials on the held-out rows."""
        if self.judges is None:
            return None
        look = landscape(*self.judges, columns=columns)
        return lambda W: self.scale * look.potentials(W)


@dataclass(frozen=True, eq=False)
class _Group:
    """Chains of one kind; they move in coordinates u = w * scale, in which steps have a length."""

    look: Landscape
    judge: Judge | None
    W: Any
    stride: float
    n_moving: Any
    scale: Any = 1.0
    columns: np.ndarray | None = None
    steps: int | None = None

    def slope(self, max_norm: float | None) -> Slope:
        """What the chains climb."""

        def climb(u: Any) -> tuple[Any, Any]:
            v, gradient = self.look(u / self.scale)
            return v, gradient / self.scale

        def bounded(u: Any) -> Any:
            if max_norm is None:
                return u
            norms = row_norms(u / self.scale)
            return u * (max_norm / norms.clip(max_norm, None))

        judge = self.judge
        return Slope(climb, bounded, None if judge is None else lambda u: judge(u / self.scale))


def _all_columns(
    rows: _Rows, sigma: float, options: SearchOptions, seed: int, n_chains: int, extra: np.ndarray | None
) -> _Group | None:
    """Chains that move in all columns."""
    if n_chains == 0 and extra is None:
        return None
    d, look, xp = rows.X.shape[1], landscape(rows.X, rows.S), array_module(rows.X)
    draws = stream(seed, "starts").standard_normal((options.tries * n_chains, d), dtype=np.float32)
    W = xp.asarray(draws * np.float32(np.sqrt(options.start) / sigma))
    if options.tries > 1 and n_chains:
        W = W[_best_tries(look.potentials(W), options.tries)]
    if extra is not None:
        W = xp.concatenate([W, xp.asarray(extra, dtype=xp.float32)])
    return _Group(look, rows.judge(), W, options.stride * np.sqrt(d) / sigma, d)


def _few_columns(rows: _Rows, options: SearchOptions, seed: int) -> _Group | None:
    """Chains that live on 1 to 3 columns that are not constant; None where there are none."""
    n_chains = round(options.chains * options.sparse_share)
    scales = rows.scales if n_chains else np.zeros(0)
    free = np.flatnonzero(scales > 0.0)
    if len(free) == 0:
        return None
    generator, xp = stream(seed, "columns"), array_module(rows.X)
    width = min(options.max_columns, len(free))
    counts = generator.integers(1, width + 1, options.tries * n_chains)
    columns = np.stack([generator.choice(free, width, replace=False) for _ in counts])
    columns[np.arange(width) >= counts[:, None]] = -1
    scale = np.where(columns >= 0, scales[columns], 1.0).astype(np.float32)
    draws = generator.standard_normal(columns.shape, dtype=np.float32) * (columns >= 0)
    W = draws / (scale * np.sqrt(counts[:, None], dtype=np.float32))
    if options.tries > 1:
        best = _best_tries(landscape(rows.X, rows.S, columns=columns).potentials(xp.asarray(W)), options.tries)
        columns, W, counts, scale = columns[best], W[best], counts[best], scale[best]
    look, moving = landscape(rows.X, rows.S, columns=columns), xp.asarray(counts[:, None])
    judge = rows.judge(columns)
    return _Group(look, judge, xp.asarray(W), 2.0 * options.stride, moving, xp.asarray(scale), columns)


def _near_columns(rows: _Rows, options: SearchOptions, seed: int, n_others: int) -> _Group | None:
    """Chains that live on columns that go together, as those over all columns do on all; None where none do."""
    n_chains = round(options.near_share * n_others)
    if n_chains == 0 or hasattr(rows.X, "toarray"):
        return None
    scales, xp = rows.scales, array_module(rows.X)
    columns = neighbourhoods(rows.X, scales, n_chains, seed)
    if columns is None:
        return None
    counts = np.count_nonzero(columns >= 0, axis=1)[:, None]
    # the distance between two rows in these columns
    sigma = np.sqrt(2.0 * np.sum(np.where(columns >= 0, scales[columns] ** 2, 0.0), axis=1, keepdims=True))
    draws = stream(seed, "near starts").standard_normal(columns.shape, dtype=np.float32) * (columns >= 0)
    W = draws * (np.sqrt(options.start) / sigma).astype(np.float32)
    scale = xp.asarray((sigma / np.sqrt(counts)).astype(np.float32))
    look, judge = landscape(rows.X, rows.S, columns=columns), rows.judge(columns)
    return _Group(look, judge, xp.asarray(W), options.stride, xp.asarray(counts), scale, columns, options.near_steps)


def _best_tries(v: Any, tries: int) -> np.ndarray:
    """The position of the highest among each chain's tries, which lie next to each other."""
    heights = on_host(v).reshape(-1, tries)
    return np.arange(len(heights)) * tries + heights.argmax(axis=1)


def _climbed(group: _Group, options: SearchOptions, seed: int) -> tuple[_Group, np.ndarray, np.ndarray]:
    """The group, its best frequencies and their potentials, on the host."""
    slope = group.slope(options.max_norm)
    start, steps = slope.bounded(group.W * group.scale), group.steps or options.steps
    if options.method == "quasi-newton":
        quasi_newton(slope, start, steps, group.stride)
    else:
        langevin(slope, start, steps, group.stride, noise=_noise(group, options, seed))
    if options.polish:
        polished(slope, slope.best, options.polish, group.stride / steps)
    best = on_host(slope.best / group.scale)
    return group, best.astype(np.float32), on_host(slope.height).astype(np.float64)


def _noise(group: _Group, options: SearchOptions, seed: int) -> Callable[[], Any] | None:
    """Draws noise for all chains whose length is `options.noise` in the mean; it stays in each chain's columns."""
    if not options.noise:
        return None
    xp, W, draw = array_module(group.W), group.W, normal_source(group.W, seed)
    size = xp.asarray(options.noise / xp.sqrt(xp.asarray(group.n_moving, dtype=W.dtype)), dtype=W.dtype)
    if group.columns is not None:
        size = size * xp.asarray(group.columns >= 0, dtype=W.dtype)
    return lambda: size * draw(W.shape)


def _written_out(group: _Group, W: np.ndarray, width: int) -> np.ndarray:
    """Frequencies over all columns, (c, d), float32."""
    if group.columns is None:
        return W
    wide = np.zeros((len(W), width), np.float32)
    chains, slots = np.nonzero(group.columns >= 0)
    wide[chains, group.columns[chains, slots]] = W[chains, slots]
    return wide


def _size(group: _Group | None) -> int:
    return 0 if group is None else len(group.W)


def _support(group: _Group, width: int) -> np.ndarray:
    if group.columns is None:
        return np.ones((len(group.W), width), bool)
    return _written_out(group, np.ones(group.W.shape, np.float32), width) > 0

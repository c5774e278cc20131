"""What sums of rows satisfy, whoever made them: whole counts, weights that add up, and bounds that no rows exceed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import DTypeLike
from scipy.linalg import lapack

from dkl.data.labels import LARGEST_TARGET
from dkl.errors import located
from dkl.features.feature_map import FeatureMap
from dkl.federated.agreement import MOST_ROWS, Agreement, node_array
from dkl.federated.exporting import SiteSums
from dkl.methods.potentials import PotentialProblem, joined_sums
from dkl.protocols.records import BlockSum

# Sums of the same weights in another order, and sums of waves in single precision, differ by their rounding.
_EXACT, _SINGLE = 1e-9, 1e-5


def check_counts(agreement: Agreement, part: SiteSums) -> None:
    """Raise ValueError where nodes, rows and weights of a site are none that `dkl.export_sums` writes."""
    expected, n_classes = node_array(agreement.nodes(part.site)).tolist(), agreement.schema.n_classes
    nodes, k = part.nodes, len(np.atleast_1d(part.nodes))
    site = f"the sums of site {part.site!r}"
    if not _is_array(nodes, np.int64, (k, 2)) or not all(node in expected for node in nodes.tolist()):
        raise ValueError(f"{site} are of other blocks than its own; export them anew")
    if nodes.tolist() != [node for node in expected if node in nodes.tolist()]:
        raise ValueError(f"{site} name blocks more than once, or not in their order; export them anew")
    if not _is_array(part.rows, np.int64, (k,)) or not (part.rows > 0).all():
        raise ValueError(f"{site} say of {part.rows!r} rows; each sum is of a whole number of rows (int64), at least 1")
    if (part.rows > MOST_ROWS).any():
        raise ValueError(f"{site} say of {part.rows.max():,} rows; sums of at most {MOST_ROWS:,} rows add up")
    if not _is_array(part.weights, np.float64, (k,)) or not (np.isfinite(part.weights) & (part.weights > 0.0)).all():
        raise ValueError(
            f"{site} have the weights {part.weights!r}; each sum has one, float64, that is finite and above 0"
        )
    by_class = part.class_weights
    if n_classes is None:
        if by_class is not None:
            raise ValueError(f"{site} have weights of classes, and there are none; export them anew")
        return
    if by_class is None or not _is_array(by_class, np.float64, (k, n_classes)) or not (by_class >= 0.0).all():
        raise ValueError(
            f"{site} have the weights {by_class!r} of classes; each sum has {n_classes}, float64, none of them negative"
        )
    if not np.isfinite(by_class).all() or not np.allclose(by_class.sum(axis=1), part.weights, rtol=_EXACT, atol=0.0):
        raise ValueError(f"{site} have weights of classes that do not add up to those of their rows; export them anew")


def check_sums(record: BlockSum, part: SiteSums) -> None:
    """Raise ValueError where the arrays of a site are none that the learner sums, or that no rows have."""
    names = list(part.sums) if isinstance(part.sums, Mapping) else None
    if names is None or set(names) != set(record.accumulators):
        raise ValueError(
            f"the sums of site {part.site!r} need the arrays {sorted(record.accumulators)}, and hold "
            f"{names if names is None else sorted(map(str, names))}; export them anew"
        )
    for name, accumulator in record.accumulators.items():
        found = part.sums[name]
        expected = (len(part.nodes), *accumulator.shape)
        if not _is_array(found, accumulator.dtype, expected):
            held = f"one of {found.dtype} and shape {found.shape}" if isinstance(found, np.ndarray) else "none"
            raise ValueError(
                f"the sums of site {part.site!r} need an array {name!r} of {accumulator.dtype} and shape {expected}, "
                f"and hold {held}; export them anew"
            )
        if accumulator.combine == "add" and not np.isfinite(found).all():
            raise ValueError(
                f"the array {name!r} in the sums of site {part.site!r} holds NaN or infinity; look at its rows "
                "(dkl verify), and export them anew"
            )
    for place in range(len(part.nodes)):
        with located(f"sum {place} of site {part.site!r}"):
            for name, is_possible in _bounds(record, part, place):
                if not np.all(is_possible):
                    raise ValueError(
                        f"the array {name!r} in the sums of site {part.site!r} cannot be sums of rows of their weight: "
                        "a value lies beyond what rows can add up to; export them anew"
                    )


def _bounds(record: BlockSum, part: SiteSums, place: int) -> Iterator[tuple[str, np.ndarray]]:
    """The arrays of one sum by name, with whether their values are possible."""
    sums = {name: np.asarray(part.sums[name][place]) for name in record.accumulators}
    by_class = None if part.class_weights is None else part.class_weights[place]
    problem = record.operands.get("problem")
    if isinstance(problem, PotentialProblem):
        yield from _potential_bounds(problem, sums, float(part.weights[place]), by_class)
        return
    targets = record.operands.get("targets")
    if by_class is not None and targets is not None and targets.class_weight is not None:
        by_class = by_class * np.asarray(targets.class_weight)
    weight = float(part.weights[place] if by_class is None else by_class.sum())
    yield from _gram_bounds(record.operands["feature_map"], sums, weight)
    if by_class is not None and targets is not None and "cross" in sums:
        # targets are 1 for the class of a model and -1 for the others
        yield "squares", np.isclose(sums["squares"], weight, rtol=_EXACT, atol=0.0)
        apart = 2.0 * by_class[targets.models] - weight
        yield "cross", np.isclose(sums["cross"][..., -1].ravel(), apart, rtol=0.0, atol=_EXACT * weight)


def _potential_bounds(
    problem: PotentialProblem, sums: dict[str, np.ndarray], weight: float, by_class: np.ndarray | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Of class sums of candidates' features: |sum_i s_i phi_i| is at most sum_i s_i times the largest |phi|."""
    # Sums of numbers, and of features without a largest value, have no other bound than that their squares are finite.
    with np.errstate(over="ignore"):
        yield from ((name, np.isfinite(np.square(array))) for name, array in sums.items())
    targets = sums["targets"]
    if by_class is None:
        weights = np.array([weight])
        yield "targets", np.isclose(targets[-1], weight, rtol=_EXACT, atol=0.0)
    else:
        weights = by_class if problem.class_weight is None else by_class * problem.class_weight
        yield "targets", np.isclose(targets, weights, rtol=_EXACT, atol=0.0)
    candidates = problem.candidates
    if not candidates.is_fourier:
        return
    # of numbers the last column is that of the weights, and the others have no bound
    features = joined_sums("features", problem.n_targets, problem, sums)[:, :, -len(weights) :]
    largest = (1.0 + _SINGLE) * np.outer(candidates.amplitudes, weights)
    yield "features", np.hypot.reduce(features, axis=0) <= largest
    if problem.needs_squares:
        squares = joined_sums("squares", problem.n_squares, problem, sums)[:, :, -len(weights) :]
        yield "squares", (squares >= 0.0) & (squares <= candidates.amplitudes[:, None] * largest)


def _gram_bounds(
    feature_map: FeatureMap, sums: dict[str, np.ndarray], weight: float
) -> Iterator[tuple[str, np.ndarray]]:
    """Of products of pairs of columns: |sum_i s_i u_i v_i|^2 is at most sum_i s_i u_i^2 times sum_i s_i v_i^2."""
    width = feature_map.n_features + 1
    upper = lapack.dtpttr(width, sums["gram"].ravel())[0]
    squares = np.diag(upper).copy()
    yield "gram", np.isclose(squares[-1], weight, rtol=_EXACT, atol=0.0)
    yield "gram", squares >= 0.0
    lengths = np.sqrt(squares)
    yield "gram", np.abs(np.triu(upper)) <= (1.0 + _SINGLE) * np.outer(lengths, lengths)
    if feature_map.is_fourier:
        amplitudes = np.tile(feature_map.amplitudes, feature_map.columns_a_frequency)
        yield "gram", squares[:-1] <= (1.0 + _SINGLE) * amplitudes**2 * weight
    if "cross" in sums:
        of_targets = sums["squares"].ravel()
        with np.errstate(over="ignore"):
            yield "squares", (of_targets >= 0.0) & (of_targets <= np.float64(LARGEST_TARGET) ** 2 * weight)
        largest = (1.0 + _SINGLE) * np.outer(np.sqrt(of_targets), lengths)
        yield "cross", np.abs(sums["cross"].reshape(largest.shape)) <= largest


def _is_array(values: object, dtype: DTypeLike, shape: tuple[int, ...]) -> bool:
    """Whether this is an array as it is stored: a masked one, say, holds other values than it shows."""
    return type(values) is np.ndarray and values.dtype == np.dtype(dtype) and values.shape == shape

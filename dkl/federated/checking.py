"""What sums of rows satisfy, whoever made them: whole counts, weights that add up, and bounds that no rows exceed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.linalg import lapack

from dkl.errors import located
from dkl.features.feature_map import FeatureMap
from dkl.federated.agreement import Agreement, node_array
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
    if not _is_array(nodes, "i", (k, 2)) or not all(node in expected for node in nodes.tolist()):
        raise ValueError(f"{site} are of other blocks than its own; export them anew")
    if len(np.unique(nodes, axis=0)) < k:
        raise ValueError(f"{site} name the same blocks more than once; export them anew")
    if not _is_array(part.rows, "iu", (k,)) or not (part.rows > 0).all():
        raise ValueError(f"{site} say of {part.rows!r} rows; each sum is of a whole number of rows, at least 1")
    if not _is_array(part.weights, "f", (k,)) or not (np.isfinite(part.weights) & (part.weights > 0.0)).all():
        raise ValueError(f"{site} have the weights {part.weights!r}; each sum has one that is finite and above 0")
    by_class = part.class_weights
    if n_classes is None:
        if by_class is not None:
            raise ValueError(f"{site} have weights of classes, and there are none; export them anew")
        return
    if by_class is None or not _is_array(by_class, "f", (k, n_classes)) or not (by_class >= 0.0).all():
        raise ValueError(
            f"{site} have the weights {by_class!r} of classes; each sum has {n_classes}, none of them negative"
        )
    if not np.isfinite(by_class).all() or not np.allclose(by_class.sum(axis=1), part.weights, rtol=_EXACT, atol=0.0):
        raise ValueError(f"{site} have weights of classes that do not add up to those of their rows; export them anew")


def check_sums(record: BlockSum, part: SiteSums) -> None:
    """Raise ValueError where the arrays of a site are none that the learner sums, or that no rows have."""
    for name, accumulator in record.accumulators.items():
        found = part.sums.get(name)
        expected = (len(part.nodes), *accumulator.shape)
        if not isinstance(found, np.ndarray) or found.shape != expected or found.dtype != np.dtype(accumulator.dtype):
            is_array = isinstance(found, np.ndarray)
            held = f"one of {found.dtype} and shape {found.shape}" if is_array else "none"  # type: ignore[union-attr]
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
    factors = getattr(targets, "class_weight", None)
    weight = float(part.weights[place])
    if factors is not None and by_class is not None:
        weight = float(by_class @ np.asarray(factors))
    yield from _gram_bounds(record.operands["feature_map"], sums, weight)


def _potential_bounds(
    problem: PotentialProblem, sums: dict[str, np.ndarray], weight: float, by_class: np.ndarray | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Of class sums of candidates' features: |sum_i s_i phi_i| is at most sum_i s_i times the largest |phi|."""
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
        yield "squares", of_targets >= 0.0
        largest = (1.0 + _SINGLE) * np.outer(np.sqrt(of_targets), lengths)
        yield "cross", np.abs(sums["cross"].reshape(largest.shape)) <= largest


def _is_array(values: object, kinds: str, shape: tuple[int, ...]) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in kinds and values.shape == shape

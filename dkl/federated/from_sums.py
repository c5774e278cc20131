"""fit_from_sums: the learner that all sites' rows together give, from their sums alone, which are checked first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy.linalg import lapack

from dkl.data.checks import check_total_weight, spoken_names
from dkl.data.counts import RowCounts
from dkl.data.dataset import Dataset
from dkl.data.labels import LARGEST_TARGET
from dkl.data.sources.summed import SummedSource
from dkl.errors import located
from dkl.features.feature_map import FeatureMap
from dkl.federated.agreement import MOST_ROWS, Agreement, as_agreement, node_array
from dkl.federated.exporting import SiteSums
from dkl.methods.potential_sums import PotentialProblem
from dkl.model_io import load_model
from dkl.passes.tree_sum import Node
from dkl.protocols.records import BlockSum

# Sums of the same weights in another order, and sums of waves in single precision, differ by their rounding.
_EXACT, _SINGLE = 1e-9, 1e-5


def fit_from_sums(
    agreement: Agreement | str | Path,
    sums: Sequence[SiteSums | str | Path],
    *,
    without: Sequence[str] = (),
) -> Any:
    """Learn from the sums of all sites what a fit to their rows in one store learns; no row is read.

    The sums are added up in the tree over all block numbers, in which a fit adds up those of blocks. In general the
    result therefore has the bits of `update` of the agreed learner, on a store to which the sites' rows were appended
    in their order. It has those of a new `fit` only where the agreement took nothing from rows: a number for the
    bandwidth, no scaling, labels. A site that has dropped rows sums again, and a site that leaves is named in
    `without`: the result has the bits of a fit without these rows, since nothing is subtracted.

    Parameters
    ----------
    agreement : Agreement, str or Path
    sums : sequence of SiteSums, str or Path
        What `dkl.export_sums` returned or wrote, one of each site, in any order.
    without : sequence of str
        Sites that take no part; their block numbers stay empty.

    Returns
    -------
    learner
        Fitted, of the kind that was agreed on, with ``sums=None``: it stores no sums of blocks, and cannot be updated.
        Weights that are not whole numbers may differ in rounding where a learner uses their total.

    Raises
    ------
    ValueError
        If sums of a site are missing, come twice, or belong to another agreement, version of dkl or device; or if
        counts, weights or sums are none that rows can have.
    TypeError
        If `sums` or `without` is no list: a single site's sums, a path, a name or a mapping.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> y = np.where(X[:, 0] > 0, "yes", "no")
    >>> stores = [dkl.create_dataset(f"{name}.zarr", X[part], y[part]) for name, part in
    ...           {"north": slice(0, 120), "south": slice(120, 200)}.items()]
    >>> learner = dkl.AlignedFeatures(dkl.Gaussian(1.0), n_candidates=100, n_features=20, random_state=0)
    >>> agreement = dkl.agree(learner, stores[0], {"north": 1, "south": 1})
    >>> sums = [dkl.export_sums(agreement, ds, site=name) for ds, name in zip(stores, agreement.sites)]
    >>> together = dkl.fit_from_sums(agreement, sums)
    >>> whole = learner.fit(stores[0].append(X[120:], y[120:]))
    >>> bool(np.array_equal(together.weights_, whole.weights_))
    True
    """
    agreement = as_agreement(agreement)
    agreement.check_version()
    if isinstance(sums, str | Path | SiteSums):
        raise TypeError("sums is one site's; expected a list with those of each site: [north, south]")
    for name, given, expected in (
        ("sums", sums, "those of each site: [north, south]"),
        ("without", without, "names of sites: ['south']"),
    ):
        # a name is a sequence of letters, and a mapping one of its keys
        if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
            raise TypeError(f"{name} is of type {type(given).__name__}; expected a list with {expected}")
    parts = [_as_sums(given) for given in sums]
    _check_parts(agreement, parts, without)
    learner = agreement.summing()
    record = learner.summed(Dataset(_summed_source(agreement, []), agreement.schema))
    for part in parts:
        check_sums(record, part)
    dataset = Dataset(_summed_source(agreement, parts), agreement.schema)
    with located(dataset.source.place):
        check_total_weight(dataset.source.counts.weights, learner.dtype)
    # what is left is to add arrays, for which no GPU is asked
    device = learner.device
    learner.set_params(device="cpu").update(dataset)
    return learner.set_params(device=device, sums=None)


def _as_sums(given: SiteSums | str | Path) -> SiteSums:
    """The sums of a site, read where they are given by their path."""
    found = load_model(given) if isinstance(given, str | Path) else given
    if not isinstance(found, SiteSums):
        what = (
            f"{str(given)!r} holds a {type(found).__name__}" if found is not given else f"got a {type(given).__name__}"
        )
        raise ValueError(f"{what}; expected what dkl.export_sums returned or wrote")
    return found


def _check_parts(agreement: Agreement, parts: Sequence[SiteSums], without: Sequence[str]) -> None:
    """Raise ValueError where sums do not belong together, or not all sites are there."""
    left_out = {name: agreement.numbers(name) for name in without}
    names = [part.site for part in parts]
    for part in parts:
        agreement.numbers(part.site)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"the sums of {spoken_names(twice)} were given more than once; give those of each site once")
    for part in parts:
        if part.site in left_out:
            raise ValueError(
                f"the sums of site {part.site!r} were given, and `without` names it; leave one of them out"
            )
        if part.agreement != agreement.digest:
            raise ValueError(
                f"the sums of site {part.site!r} were made under another agreement (other candidates, scaling or block "
                "numbers), so that they do not add up with the others; export them anew"
            )
        if part.version != agreement.version or part.device != parts[0].device:
            raise ValueError(
                f"the sums of site {part.site!r} were computed by dkl {part.version} on {part.device}, and those of "
                f"{parts[0].site!r} by dkl {parts[0].version} on {parts[0].device}: they would not have the bits of "
                "one fit; compute all of them alike (device='cpu')"
            )
        check_counts(agreement, part)
    missing = [name for name in agreement.sites if name not in names and name not in left_out]
    if missing:
        raise ValueError(
            f"the sums of {spoken_names(missing)} are missing; give them, or leave the sites out: without={missing}"
        )
    if not any(len(part.nodes) for part in parts):
        raise ValueError("the sums are of no rows at all; at least one site needs some")


def _summed_source(agreement: Agreement, parts: Sequence[SiteSums]) -> SummedSource:
    """The sums of all sites as blocks, each node's where its first block is."""
    n_classes = agreement.schema.n_classes
    rows, weights = np.zeros(agreement.n_blocks, np.int64), np.zeros(agreement.n_blocks)
    classes = None if n_classes is None else np.zeros((agreement.n_blocks, n_classes))
    sums: dict[int, dict[str, np.ndarray]] = {}
    for part in parts:
        for place, (level, index) in enumerate(part.nodes.tolist()):
            first = Node(level, index).blocks(agreement.n_blocks).start
            rows[first], weights[first] = part.rows[place], part.weights[place]
            if classes is not None and part.class_weights is not None:
                classes[first] = part.class_weights[place]
            sums[first] = {name: array[place] for name, array in part.sums.items()}
    place_name = f"the sums of {spoken_names([part.site for part in parts])}"
    return SummedSource(sums, RowCounts(rows, weights, classes), agreement.schema, place_name)


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
    features = problem.features_of(sums)[:, :, -len(weights) :]
    largest = (1.0 + _SINGLE) * np.outer(candidates.amplitudes, weights)
    yield "features", np.hypot.reduce(features, axis=0) <= largest
    if problem.needs_squares:
        squares = problem.squares_of(sums)[:, :, -len(weights) :]
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

"""fit_from_sums: the learner that all sites' rows together give, from their sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dkl.data.checks import check_total_weight, spoken_names
from dkl.data.counts import RowCounts
from dkl.data.dataset import Dataset
from dkl.data.sources.summed import SummedSource
from dkl.errors import located
from dkl.federated.agreement import Agreement, as_agreement
from dkl.federated.checking import check_counts, check_sums
from dkl.federated.exporting import SiteSums
from dkl.model_io import load_model
from dkl.passes.tree_sum import Node
from dkl.version import __version__


def fit_from_sums(
    agreement: Agreement | str | Path,
    sums: Sequence[SiteSums | str | Path],
    *,
    without: Sequence[str] = (),
) -> Any:
    """Learn from the sums of all sites what a fit to their rows in one store learns; no row is read.

    The sums are added up in the tree over all block numbers, in which a fit adds up those of blocks, so that the result
    has the bits of `update` of the agreed learner on a store to which the sites' rows were appended in their order; and
    those of a new `fit` where the agreement took nothing from rows: a number for the bandwidth, no scaling, labels.
    A site that has dropped rows sums again, and a site that leaves is named in `without`: the result has the bits of a
    fit without these rows, since nothing is subtracted.

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
        Fitted, of the kind that was agreed on. Weights that are not whole numbers may differ in rounding where a
        learner uses their total.

    Raises
    ------
    ValueError
        If sums of a site are missing, come twice, or belong to another agreement, version of dkl or device; or if
        counts, weights or sums are none that rows can have.

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
    if agreement.version != __version__:
        raise ValueError(
            f"the agreement was made with dkl {agreement.version}, and this is dkl {__version__}, which may round "
            "otherwise; use one version at all sites"
        )
    if isinstance(sums, str | Path | SiteSums):
        raise TypeError("sums is one site's; expected a list with those of each site: [north, south]")
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

"""Agreement: what sites settle beforehand, so that the sums of their rows add up to those of all rows together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from dkl.data.checks import spoken_names, whole_number
from dkl.data.dataset import Dataset
from dkl.data.schema import Schema
from dkl.data.store.blocking import MAX_BLOCK_ROWS
from dkl.data.store.location import Location
from dkl.data.store.outputs import written_whole
from dkl.data.store.overwriting import check_output
from dkl.encodings.categories import refuse_codes
from dkl.errors import StoreError
from dkl.methods.fit_context import FitContext
from dkl.methods.updating import Updated
from dkl.model_io import as_json, content_hash, from_json, load_model, save
from dkl.passes.tree_sum import Node, count_nodes
from dkl.plain_files import read_plain
from dkl.version import __version__

# A learner that keeps sums takes one pass of block sums; where it would keep them does not matter here.
_SUMMING = "an agreement"
CODES_DO_NOT_TRAVEL = (
    "give these columns fewer values, so that they are one-hot, or leave them out: target means are of the rows of all "
    "sites, which no site knows when it sums its own"
)
# What a file begins with.
_ABOUT = {"kind": "dkl agreement", "format": 1}
# Blocks of all sites: a trillion rows in blocks of 65,536. Whoever fits holds some counts for each of them.
_MOST_BLOCKS = 1 << 24
MOST_ROWS = _MOST_BLOCKS * MAX_BLOCK_ROWS
# Settings that each site has for itself.
_OF_THE_PLACE = ("sums", "checkpoint", "progress", "memory_limit", "device")
# What the fit that an agreement is made by says of its own rows.
_OF_THE_ROWS = ("stats_", "provenance_", "total_weight_")


@dataclass(frozen=True, eq=False)
class Agreement:
    """The settings that sites share before they sum: candidates, scaling, classes, columns, and each site's blocks.

    Made by `dkl.agree`; `save` writes it to a store, and whatever takes an agreement takes the path of one.

    Parameters
    ----------
    learner : learner
        With candidates, scaling and bandwidth, and without weights.
    schema : Schema
        The columns, classes and dtype of the rows.
    sites : mapping of str to int
        How many blocks each site has, in the order of their block numbers.
    version : str
        Of dkl: another one may round otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(60, 2))
    >>> public = dkl.create_dataset("known_to_all.zarr", X, np.where(X[:, 0] > 0, "yes", "no"))
    >>> learner = dkl.AlignedFeatures(n_candidates=50, n_features=10, random_state=0)
    >>> settled = dkl.agree(learner, public, {"north": 8, "south": 4})
    >>> settled.n_blocks, list(settled.sites)
    (12, ['north', 'south'])
    """

    learner: Any
    schema: Schema
    sites: Mapping[str, int]
    version: str

    def __post_init__(self) -> None:
        _checked_sites(self.sites)

    @property
    def n_blocks(self) -> int:
        """Blocks of all sites."""
        return sum(self.sites.values())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that is agreed: sums of different agreements do not add up."""
        return content_hash(self)

    def check_version(self) -> None:
        """Raise ValueError where the agreement was made with another version of dkl."""
        if self.version != __version__:
            raise ValueError(
                f"the agreement was made with dkl {self.version}, and this is dkl {__version__}, which may round "
                "otherwise; use one version at all sites"
            )

    def numbers(self, site: str) -> range:
        """The numbers of a site's blocks.

        Raises
        ------
        ValueError
            If there is no such site.
        """
        if not isinstance(site, str) or site not in self.sites:
            raise ValueError(f"site is {site!r}; the agreement is between {spoken_names(list(self.sites))}")
        names = list(self.sites)
        first = sum(self.sites[name] for name in names[: names.index(site)])
        return range(first, first + self.sites[site])

    def nodes(self, site: str) -> list[Node]:
        """The largest nodes of the tree over all blocks that lie within a site's numbers, in their order."""
        numbers, found = self.numbers(site), []
        start = numbers.start
        while start < numbers.stop:
            level = 0
            # the node above begins here, too, and ends within the site; the last one of a level may be cut short
            while (
                start % (2 << level) == 0
                and count_nodes(self.n_blocks, level) > 1
                and min(start + (2 << level), self.n_blocks) <= numbers.stop
            ):
                level += 1
            found.append(Node(level, start >> level))
            start = found[-1].blocks(self.n_blocks).stop
        return found

    def with_sites(self, sites: Mapping[str, int]) -> Agreement:
        """The same candidates and scaling for other sites, or for other numbers of blocks; all sites then sum anew.

        Parameters
        ----------
        sites : mapping of str to int
        """
        return replace(self, sites=_checked_sites(sites))

    def save(self, store: str | Path, *, overwrite: bool = False, **storage_options: Any) -> None:
        """Write the agreement, for all sites to read: one file to show and to mail, or a store; see `Agreement.load`.

        Parameters
        ----------
        store : str or Path
            A local name that ends in ``.json`` is a file of JSON: sites, columns, classes and settings in words first,
            and numbers bit by bit behind (an array is its dtype, its shape and its bytes in base64). Anything else is a
            store, the smaller form of many frequencies, for URLs, too.
        overwrite : bool
        **storage_options
            For fsspec.

        Raises
        ------
        FileExistsError
            If something is there and `overwrite` is False.
        """
        if Path(store).suffix != ".json":
            save(self, store, overwrite=overwrite, **storage_options)
            return
        check_output(store, "agreement", overwrite=overwrite, is_own=is_agreement_file)
        facts = {**_ABOUT, "digest": self.digest, "agreed": self.summary(), **as_json(self)}
        with written_whole(store) as hidden:
            hidden.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def summary(self) -> dict[str, Any]:
        """The agreement as JSON values that a person reads: sites, columns, classes, settings."""
        settings = {name: repr(value) for name, value in self.learner.get_params(deep=False).items()}
        numbers = {site: self.numbers(site) for site in self.sites}
        names, classes = self.schema.column_names, self.schema.classes
        return {
            "sites": {site: f"blocks {own.start} to {own.stop - 1}" for site, own in numbers.items()},
            "columns": list(names) if names is not None else self.schema.n_columns,
            "classes": None if classes is None else classes.tolist(),
            "learner": type(self.learner).__name__,
            "settings": {name: text for name, text in settings.items() if name not in _OF_THE_PLACE},
            "dkl": self.version,
        }

    @classmethod
    def load(cls, store: str | Path, **storage_options: Any) -> Agreement:
        """The agreement that `save` wrote.

        Parameters
        ----------
        store : str or Path
        **storage_options
            For fsspec.

        Raises
        ------
        ValueError
            If something else of dkl is there.
        StoreError
            If the file or the store is damaged, or words and numbers of a file say different things.
        """
        if Path(store).suffix == ".json":
            return _of_file(Path(store))
        found = load_model(store, **storage_options)
        if not isinstance(found, Agreement):
            raise ValueError(f"{str(store)!r} holds a {type(found).__name__}, not what dkl.agree(...).save wrote")
        return found

    def summing(self) -> Any:
        """The learner as it takes sums, another one each time."""
        learner = clone(self.learner)
        # what was settled, candidates and scaling among it, are attributes that a clone does not have
        vars(learner).update({name: value for name, value in vars(self.learner).items() if name.endswith("_")})
        return learner.set_params(sums=_SUMMING)

    def __repr__(self) -> str:
        sites = ", ".join(f"{name}: {count}" for name, count in self.sites.items())
        return f"Agreement({type(self.learner).__name__}, {self.schema.n_columns} columns, blocks of {{{sites}}})"


def agree(learner: BaseEstimator, rows: Dataset, sites: Mapping[str, int]) -> Agreement:
    """Settle candidates, scaling, classes and block numbers, so that sites can learn together and keep their rows.

    Every site then sums its own rows (`dkl.export_sums`), and `dkl.fit_from_sums` learns from these sums what a fit to
    all rows learns, bit by bit.

    Parameters
    ----------
    learner : AlignedFeatures, PosteriorFeatures, LandmarkFeatures, LeverageFeatures, TunedClassifier or TunedRegressor
        Not fitted; tuned ones with loss="squared_error", solver="full" and dtype="float64".
    rows : Dataset
        Rows with the columns and all classes of the sites' ones. Scaling, a median bandwidth, the units of numbers and
        the centroids of landmarks are found on them and become part of the agreement, which all sites read: take rows
        that may be known, such as public or made-up ones.
    sites : mapping of str to int
        How many blocks the store of each site has (``ds.source.n_blocks``), in the order in which their rows would be
        appended to one store.

    Returns
    -------
    Agreement

    Raises
    ------
    TypeError
        If the learner does not choose by sums.
    ValueError
        If what it learns depends on more than sums of the sites' rows: class_weight="balanced", max_rows, n_rows,
        landmarks that are rows, columns with codes of categories.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> made_up = np.random.default_rng(0).normal(size=(200, 3))
    >>> public = dkl.create_dataset("public.zarr", made_up, np.where(made_up[:, 0] > 0, "yes", "no"))
    >>> learner = dkl.AlignedFeatures(n_candidates=100, n_features=20, random_state=0)
    >>> agreement = dkl.agree(learner, public, {"north": 8, "south": 5})
    >>> agreement.n_blocks, agreement.numbers("south")
    (13, range(8, 13))
    """
    _check_learner(learner)
    if not isinstance(rows, Dataset):
        raise ValueError(
            f"rows is of type {type(rows).__name__}; expected a Dataset like those of the sites: "
            "dkl.create_dataset('public.zarr', X, y)"
        )
    refuse_codes(rows, "agree", CODES_DO_NOT_TRAVEL)
    settled = clone(learner).set_params(sums=_SUMMING, checkpoint=None)
    settled.fit_within(rows, FitContext(hints=False, weighs=False))
    check_is_fitted(settled)
    for name in _OF_THE_ROWS:
        vars(settled).pop(name, None)
    # the schema of the sites' rows says what columns are; where these rows came from is no part of it
    schema = replace(rows.schema, provenance={}, has_weight=False, row_columns={}, held_by=None, shuffle_seed=None)
    return Agreement(settled, schema, _checked_sites(sites), __version__)


def is_agreement_file(path: Path) -> bool:
    """Whether a file is one that `Agreement.save` wrote."""
    try:
        facts = json.loads(read_plain(path))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(facts, dict) and all(facts.get(name) == text for name, text in _ABOUT.items())


def _of_file(path: Path) -> Agreement:
    """The agreement in a file of JSON, whose words are those of its numbers."""
    if not path.exists():
        raise FileNotFoundError(f"there is no agreement at {str(path)!r}")
    if not is_agreement_file(path):
        raise ValueError(f"{str(path)!r} is not what dkl.agree(...).save wrote")
    facts = json.loads(read_plain(path))
    found, said, cause = None, None, None
    try:
        found = from_json(facts, Location.of(path))
        said = found.digest, found.summary()
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        cause = error
    if not isinstance(found, Agreement) or said != (facts.get("digest"), facts.get("agreed")):
        raise StoreError(
            f"{str(path)!r} does not say what was agreed: its digest or its words are not those of its numbers; ask "
            "for the file again"
        ) from cause
    return found


def _check_learner(learner: BaseEstimator) -> None:
    """Raise an error for a learner whose result is no function of sums over the sites' rows."""
    name = type(learner).__name__
    if not isinstance(learner, Updated):
        raise TypeError(
            f"{name} learns from more than one pass of sums; sites can learn together with AlignedFeatures, "
            "PosteriorFeatures, LandmarkFeatures, LeverageFeatures, and TunedClassifier or TunedRegressor with "
            "loss='squared_error'"
        )
    for parameter in ("max_rows", "n_rows"):
        if getattr(learner, parameter, None) is not None:
            raise ValueError(
                f"{name} has {parameter}={getattr(learner, parameter)!r}, and which rows a sample takes depends on the "
                f"rows of all sites; leave {parameter}=None"
            )
    if getattr(learner, "class_weight", None) == "balanced":
        raise ValueError(
            f"{name} has class_weight='balanced', which depends on how many rows of each class all sites have; agree "
            "on factors: class_weight={label: factor, ...}"
        )
    if getattr(learner, "landmarks", None) == "random":
        raise ValueError(
            f"{name} has landmarks='random', which are rows and would be read by all sites; take landmarks='kmeans'"
        )


def _checked_sites(sites: Mapping[str, int]) -> dict[str, int]:
    """The sites with their numbers of blocks, at least one each."""
    if not isinstance(sites, Mapping) or not sites:
        raise ValueError(f"sites is {sites!r}; expected how many blocks each site has: {{'north': 8, 'south': 5}}")
    checked = {str(name): whole_number(count, f"sites[{name!r}]", 1) for name, count in sites.items()}
    if (total := sum(checked.values())) > _MOST_BLOCKS:
        raise ValueError(
            f"the sites have {total:,} blocks together; sums of at most {_MOST_BLOCKS:,} add up: give the numbers of "
            "blocks (ds.source.n_blocks), not of rows, or write the stores anew with larger blocks (rows_a_block=)"
        )
    return checked


def as_agreement(agreement: Agreement | str | Path) -> Agreement:
    """An agreement, read where it is given by its path."""
    if isinstance(agreement, Agreement):
        return agreement
    if isinstance(agreement, str | Path):
        return Agreement.load(agreement)
    raise TypeError(f"agreement is of type {type(agreement).__name__}; expected what dkl.agree returns, or its path")


def node_array(nodes: list[Node]) -> np.ndarray:
    """Level and index of each node, (k, 2) int64."""
    return np.array([(node.level, node.index) for node in nodes], np.int64).reshape(-1, 2)

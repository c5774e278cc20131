"""The checkpoint folder of a learner: the identity of its run, its seed (drawn only once), a part for each stage."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from dkl.data.dataset import Dataset
from dkl.data.sources.in_place import InPlaceSource
from dkl.events import Subscriber
from dkl.methods.fit_context import FitContext
from dkl.methods.parameters import RandomState, StorePath, drawn_seed
from dkl.methods.provenance import recorded_device
from dkl.passes.checkpoint import Checkpoint, check_place
from dkl.passes.loop import Run, run_pass
from dkl.progress import resolve_progress
from dkl.protocols.block import Block
from dkl.protocols.estimators import Estimator
from dkl.protocols.records import BlockSum
from dkl.version import __version__

# parameters that do not change the result, so that a run may resume with other values
_WITHOUT_EFFECT = {"checkpoint", "progress", "memory_limit", "device", "sums"}


def run_fingerprint(estimator: Estimator, dataset: Dataset, context: FitContext | None = None) -> str:
    """The identity of a run, by which its checkpoint is recognised: data, parameters, withheld rows and version.

    Empty without a checkpoint, since hashing rows in memory reads them all.
    """
    parameters = estimator.get_params(deep=False)
    if parameters["checkpoint"] is None:
        return ""
    recognise_rows(dataset, parameters["checkpoint"], resolve_progress(parameters.get("progress", False)))
    withheld, judging = (None, None) if context is None else (context.withheld, context.judging_seed)
    # a machine passes its seed to learners, unless they have their own
    own = judging is None or judging == parameters.get("random_state")
    settings = (effective_parameters(estimator), *([] if withheld is None else [withheld]), *([] if own else [judging]))
    return digest_of(*settings, dataset.fingerprint, __version__)


def run_parts(estimator: Estimator, dataset: Dataset) -> dict[str, str]:
    """Digests of what `run_fingerprint` is of, by name, so that an error says what differs; empty without a store."""
    if estimator.get_params(deep=False)["checkpoint"] is None:
        return {}
    kind, parameters = effective_parameters(estimator)
    digests = {name: digest_of(value) for name, value in parameters}
    return {"the rows": dataset.fingerprint, "the version of dkl": __version__, "the estimator": kind, **digests}


def recognise_rows(dataset: Dataset, store: StorePath, publish: Subscriber) -> None:
    """Recognise arrays in place as those that the run of a checkpoint has read, if their values are equal.

    Arrays in place are identified by the names, sizes and times of their objects, which a copy does not share. The
    checkpoint stores digests of the blocks that the run has read, and a copy is read once to compare them.

    Raises
    ------
    StoreError
        If a chunk has other values than the run has read.
    """
    source, kept = dataset.source.base, stage_checkpoint(store, "rows-0")
    if kept is None or not isinstance(source, InPlaceSource):
        return
    saved = kept.load(source.identity)
    if saved is None:
        kept.save({}, {"known_as": source.known_as}, fingerprint=source.identity)
    elif saved.values["known_as"] != source.known_as and saved.arrays:
        source.expect(saved.arrays)
        run_pass(source, [BlockSum("compare rows with the checkpoint", _no_sums, {})], publish=publish)
        source.known_as = saved.values["known_as"]
    source.keep_digests(partial(kept.save, values={"known_as": source.known_as}, fingerprint=source.identity))


def _no_sums(block: Block, operands: Mapping[str, object]) -> dict[str, np.ndarray]:
    """A block function without sums, for a pass that only reads."""
    return {}


def digest_of(*parts: object) -> str:
    """SHA-256 of plain values and arrays, by their full text representation."""
    # NumPy abbreviates long arrays by dots, so that different ones would have the same text
    with np.printoptions(threshold=sys.maxsize, floatmode="unique"):
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def effective_parameters(value: object) -> Any:
    """The class name of an estimator and the parameters that affect its result, with those of inner estimators.

    Parameters
    ----------
    value : estimator, or anything else
        Other values are returned unchanged.
    """
    if not isinstance(value, BaseEstimator):
        return value
    parameters = {
        k: effective_parameters(v) for k, v in value.get_params(deep=False).items() if k not in _WITHOUT_EFFECT
    }
    if not isinstance(parameters.get("random_state"), Integral):
        parameters["random_state"] = None
    return type(value).__name__, sorted(parameters.items())


def stage_checkpoint(store: StorePath, stage: str) -> Checkpoint | None:
    """The checkpoint of one stage, in a subfolder of the learner's."""
    return None if store is None else Checkpoint(f"{str(store).rstrip('/')}/{stage}")


def run_of(estimator: Any, stage: str, fingerprint: str) -> Run:
    """Settings for the passes of an estimator's stage; with an empty fingerprint without a checkpoint."""
    return Run(
        publish=resolve_progress(estimator.progress),
        memory_limit=estimator.memory_limit,
        device=recorded_device(estimator.device),
        checkpoint=stage_checkpoint(estimator.checkpoint, stage) if fingerprint else None,
        fingerprint=fingerprint,
    )


def stored_seed(
    random_state: RandomState, store: StorePath, fingerprint: str, parts: Mapping[str, str] | None = None
) -> int:
    """The seed of `random_state`, stored in the checkpoint, so that a resumed run has the same one.

    Parameters
    ----------
    random_state : int, RandomState or None
    store : str, path or None
    fingerprint : str
    parts : mapping of str to str, or None
        As of `run_parts`, stored beside the seed.

    Raises
    ------
    StoreError
        If the checkpoint belongs to another run (raised before any pass), or if its path is a dataset or a model, or
        inside one.
    NotADirectoryError
        If its path is a file.
    """
    checkpoint = stage_checkpoint(store, "seed")
    if store is None or checkpoint is None:
        return drawn_seed(random_state)
    check_place(os.fspath(store))
    saved = checkpoint.load(fingerprint, parts)
    if saved is not None:
        return int(saved.values["seed"])
    seed = drawn_seed(random_state)
    checkpoint.save({}, {"seed": seed, "parts": dict(parts or {})}, fingerprint=fingerprint)
    return seed

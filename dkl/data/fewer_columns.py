"""Datasets without columns of their tables."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.data.view import KeptColumns, View


def without_columns(dataset: Dataset, names: Collection[str], why: str = "") -> Dataset:
    """The dataset without the encoded columns of these names; the dataset itself if it has none of them.

    Its encoding still accepts tables that contain them. One-hot columns and cosines of the same raw column are removed
    together.

    Parameters
    ----------
    dataset : Dataset
        Its columns must have names.
    names : collection of str
    why : str
        The reason why a fit leaves them out, which the encoding remembers; empty if they are no columns of the fit.
    """
    of_rows = dataset.column_names or []
    kept = np.flatnonzero([name not in names for name in of_rows])
    if len(kept) == len(of_rows):
        return dataset
    encoding = dataset.encoding
    if encoding is not None:
        rules = []
        for rule in encoding.rules:
            left = [name for name in rule.output_names if name not in names]
            if len(left) == len(rule.output_names):
                rules.append(rule)
            elif left:
                # of a time only the days are removed: its cycles stay
                rules.append(replace(rule, parts=tuple(part for part in rule.parts if part != "days")))
        gone = {rule.name for rule in encoding.rules} - {rule.name for rule in rules}
        # a file of a model holds the directions of its rules' texts, and is refused with any others
        directions = tuple(each for each in encoding.directions if each.name not in gone)
        ignored = (*encoding.ignored, *sorted(gone))
        left_out = (*encoding.left_out, *((name, why) for name in sorted(gone) if why))
        encoding = replace(encoding, rules=tuple(rules), ignored=ignored, directions=directions, left_out=left_out)
    schema = replace(
        dataset.schema,
        n_columns=len(kept),
        column_names=[of_rows[place] for place in kept],
        encoding=encoding,
        passthrough=None if dataset.schema.passthrough is None else dataset.schema.passthrough[kept],
    )
    return dataset.with_rows(View(dataset.source, KeptColumns(kept, len(of_rows))), schema)


def left_out_of(fitted: Any, given: Any) -> list[str]:
    """The encoded columns of a dataset that a fit left out: of raw columns that it ignores, or the days of a time.

    Parameters
    ----------
    fitted, given : TableEncoding, FittedEncoding or None
        Those of the model, and of the dataset.
    """
    if fitted is None or given is None:
        return []
    known, names = {rule.name: rule for rule in fitted.rules}, []
    for rule in given.rules:
        own = known.get(rule.name)
        if own is None and rule.name in fitted.ignored:
            names += rule.output_names
        elif own is not None and "days" in rule.parts and own.parts and "days" not in own.parts:
            names += rule.output_names[:1]
    return names

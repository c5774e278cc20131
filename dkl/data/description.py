"""What a dataset is, as facts that print, show in a notebook, and go into JSON."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dkl.data.schema import Schema
from dkl.data.sources.rows import RowSource
from dkl.data.splits import SplitSet
from dkl.plain_text import plain_text

_SHOWN = 12


@dataclass(frozen=True)
class Description:
    """Facts about a dataset.

    Parameters
    ----------
    facts : mapping
        JSON values under plain names.
    """

    facts: Mapping[str, Any]

    def __str__(self) -> str:
        width = max(map(len, self.facts), default=0)
        return plain_text("\n".join(f"{name:<{width}}  {shown(value)}" for name, value in self.facts.items()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{html.escape(name)}</th>'
            f'<td style="text-align:left">{html.escape(shown(value))}</td></tr>'
            for name, value in self.facts.items()
        )
        return f"<table><caption>dkl Dataset</caption><tbody>{rows}</tbody></table>"


def shown(value: object) -> str:
    """One fact on one line, long lists cut."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        items = [f"{key}: {shown(item)}" for key, item in list(value.items())[:_SHOWN]]
        return ", ".join(items) + _more(len(value))
    if isinstance(value, list | tuple):
        return ", ".join(shown(item) for item in value[:_SHOWN]) + _more(len(value))
    return str(value)


def _more(count: int) -> str:
    return f" and {count - _SHOWN:,} more" if count > _SHOWN else ""


def describe_rows(source: RowSource, schema: Schema, splits: Mapping[str, SplitSet], name: str) -> Description:
    """All facts that are known without reading rows, and the classes of a view where they must be counted.

    Parameters
    ----------
    source : RowSource
    schema : Schema
    splits : mapping of str to SplitSet
    name : str
        Of the view; empty for all rows.
    """
    facts: dict[str, Any] = {"place": source.place, "rows": int(source.block_rows.sum()), "columns": source.n_columns}
    if name:
        facts["view"] = name
    if "target" in schema.provenance:
        facts["target"] = schema.provenance["target"]
    facts |= {"dtype": str(source.dtype), "sparse": source.is_sparse, "task": schema.task or "none"}
    weights = source.counts.class_weights if schema.classes is not None else None
    if schema.classes is not None and weights is not None:
        # Without weights the sums count rows, and are shown as such.
        number = float if source.has_weight else int
        labels = map(str, schema.classes.tolist())
        facts["classes"] = {label: number(weight) for label, weight in zip(labels, weights.sum(axis=0), strict=True)}
    if source.has_weight:
        facts["total weight"] = float(source.counts.weights.sum())
    facts["blocks"] = source.n_blocks
    facts["rows a block"] = int(source.block_rows.max(initial=0))
    facts["largest block (MiB)"] = round(source.block_nbytes / 2**20, 2)
    if source.stored_nbytes:
        facts["stored (MiB)"] = round(source.stored_nbytes / 2**20, 2)
    for label, split in splits.items():
        rows = split.rows.sum(axis=0)
        facts[f"splits ({label})"] = {n: int(count) for n, count in zip(split.names, rows, strict=True)}
    if schema.column_names is not None:
        facts["column names"] = list(schema.column_names)
    if schema.encoding is not None:
        facts["encoding"] = str(schema.encoding.describe())
    for role, known in schema.row_columns.items():
        facts[f"{role} column"] = f"{known.name}{' (rows are held out by it)' if schema.held_by == role else ''}"
    if schema.first_index is not None:
        facts["first index"] = schema.first_index
    if schema.shuffle_seed is not None:
        facts["shuffled with seed"] = schema.shuffle_seed
    if schema.provenance:
        facts["provenance"] = dict(schema.provenance)
    return Description(facts | dict(source.storage_facts))

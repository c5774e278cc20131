"""Rows that have one column of dates are held out by it, where a machine chooses everything by itself."""

from __future__ import annotations

import numpy as np

from dkl.data.schema import Schema
from dkl.data.sources.rows import RowSource
from dkl.data.together.choosing import feature_values
from dkl.data.together.codes import time_codes
from dkl.data.together.rules import with_column

# The dates of all rows are held while they are read: 64 MiB.
_MOST_ROWS = 2**23
_FEWEST_TIMES = 20
_LARGEST_SHARE = 0.1


def held_by_own_dates(source: RowSource, schema: Schema) -> tuple[RowSource, Schema]:
    """The source and the schema whose rows are held out by their dates, the newest ones first.

    That needs one column of dates, in which none is missing, with at least 20 different ones of which none is that of
    more than a tenth of the rows, and rows that nothing keeps together yet; others stay as they are.
    """
    dated = [rule for rule in getattr(schema.encoding, "rules", ()) if rule.kind == "date"]
    n_rows = int(source.block_rows.sum())
    if schema.row_columns or len(dated) != 1 or dated[0].missing or not 0 < n_rows <= _MOST_ROWS:
        return source, schema
    (rule,) = dated
    days = feature_values(source, (schema.column_names or []).index(f"{rule.name}.days"))
    _, counts = np.unique(days, return_counts=True)
    if len(counts) < _FEWEST_TIMES or counts.max() > _LARGEST_SHARE * n_rows:
        return source, schema
    codes, kind = time_codes(days, n_rows, repr(rule.name))
    return with_column(source, schema, "time", codes, (rule.name, kind))

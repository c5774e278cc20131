"""Dates, numbers in texts and free text as steps of scikit-learn's Pipeline, made of functions of pandas and NumPy.

Each is a pipeline that begins with one raw column as a pandas Series.
"""

from __future__ import annotations

import re
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer

from dkl.data.columns.free_text import BUCKETS, TextDirections, hashing
from dkl.data.columns.numbers import NumberForm
from dkl.data.ingest.column_rules import ColumnRule
from dkl.export.step_transformers import linear_map

# What text is cleaned of before it is read as a number: blanks and signs in their variants.
_PLAIN = (("[\u00a0\u2007\u2009\u202f]", " "), ("[\u2018\u2019´`]", "'"), ("[\u2212\u2013]", "-"))
_SECONDS = 86_400.0


def is_raw(rule: ColumnRule) -> bool:
    """Whether a column takes steps of this module: others are numbers, booleans and categories as they are."""
    return rule.kind in ("date", "time", "duration", "text") or (
        rule.kind == "number" and bool(rule.form or rule.unread)
    )


def raw_steps(rule: ColumnRule) -> FeatureUnion | Pipeline:
    """The encoded columns of a raw one; those of free text are completed by `complete_text`."""
    if rule.kind == "text":
        values: Any = _text_steps()
    elif rule.kind == "number":
        values = _number_steps(rule)
    else:
        values = _time_steps(rule)
    if not rule.flags_missing:
        return values
    flag = Pipeline([*_missing_of(rule), ("columns", _call(pd.Series.to_frame))])
    return FeatureUnion([("values", values), ("flag", flag)])


def _call(function: Any, **arguments: Any) -> FunctionTransformer:
    return FunctionTransformer(function, kw_args=arguments or None)


def _missing_of(rule: ColumnRule) -> list[tuple[str, Any]]:
    """Where the values are missing, or are none of what the column holds."""
    before: list[tuple[str, Any]] = []
    if rule.kind == "number":
        before = _read_number(rule)
    elif rule.kind in ("date", "time", "duration"):
        before = _read_time(rule)
    return [*before, ("missing", _call(pd.isna))]


def _filled(fill: float | None) -> list[tuple[str, Any]]:
    """An imputer for missing numbers; none where they are errors."""
    return [] if fill is None else [("filled", SimpleImputer(strategy="constant", fill_value=fill))]


def _number_steps(rule: ColumnRule) -> Pipeline:
    return Pipeline([*_read_number(rule), *_column(), *_filled(rule.filling)])


def _read_number(rule: ColumnRule) -> list[tuple[str, Any]]:
    """Texts, or numbers, as numbers; NaN where they are none."""
    form = NumberForm.of(rule.form) if rule.form else NumberForm()
    units = [rf"(?i)\s*{re.escape(unit)}\s*" for unit in (form.before, form.after) if unit]
    changes = [*_PLAIN, *((unit, "") for unit in units)]
    changes += [(r"^\s*\((.*)\)\s*$", r"-\1"), (r"^\s*([^-].*)-\s*$", r"-\1")]
    if form.thousands:
        # between a digit and three more: a number that was handed over as one may have a point of its own
        changes.append((rf"(?<=\d){re.escape(form.thousands)}(?=\d{{2,3}}(?!\d))", ""))
    if form.decimal == ",":
        changes.append((",", "."))
    steps: list[tuple[str, Any]] = [("texts", FunctionTransformer(methodcaller("astype", "str")))]
    steps += [
        (f"change {place}", FunctionTransformer(methodcaller("replace", pattern, by, regex=True)))
        for place, (pattern, by) in enumerate(changes)
    ]
    return [*steps, ("numbers", _call(pd.to_numeric, errors="coerce"))]


def _time_steps(rule: ColumnRule) -> FeatureUnion | Pipeline:
    """Days, and cosine and sine of what recurs: see `dkl.data.ingest.dates.encoded_days`."""
    if rule.kind == "duration":
        return Pipeline([*_read_time(rule), *_in_days(), *_filled(rule.filling)])
    days = [("since 1970", _arithmetic("__sub__", pd.Timestamp(0))), *_in_days()]
    # The turns of each cycle: days, those from Monday on in weeks, and those from 1 January on in years.
    turns: dict[str, list[tuple[str, Any]]] = {
        "hour": days,
        # 1970-01-01 was a Thursday, three days after a Monday
        "weekday": [
            *days,
            ("day", _call(np.floor)),
            ("from Monday", _arithmetic("__add__", 3.0)),
            ("weeks", _arithmetic("__truediv__", 7.0)),
        ],
        "yearday": [
            ("day of the year", FunctionTransformer(attrgetter("dt.day_of_year"))),
            *_column(),
            ("from January", _arithmetic("__sub__", 1.0)),
            ("years", _arithmetic("__truediv__", 365.25)),
        ],
    }
    parts: list[tuple[str, Any]] = []
    for part in rule.parts:
        if part == "days":
            parts.append((part, Pipeline([*days, *_filled(rule.filling)])))
            continue
        for function in (np.cos, np.sin):
            angle = [("angle", _arithmetic("__mul__", 2.0 * np.pi)), ("circle", _call(function))]
            # what is missing lies in the middle of the circle
            parts.append((f"{part} {function.__name__}", Pipeline([*turns[part], *angle, *_filled(0.0)])))
    return Pipeline([*_read_time(rule), ("parts", FeatureUnion(parts))])


def _arithmetic(name: str, other: Any) -> FunctionTransformer:
    return FunctionTransformer(methodcaller(name, other))


def _column() -> list[tuple[str, Any]]:
    """A Series as a column of numbers in double precision."""
    return [("column", _call(pd.Series.to_frame)), ("double precision", _call(np.asarray, dtype="float64"))]


def _in_days() -> list[tuple[str, Any]]:
    """Lengths of time, a Series, as a column of days; NaN where missing."""
    return [
        ("of lengths", FunctionTransformer(attrgetter("dt"))),
        ("seconds", FunctionTransformer(methodcaller("total_seconds"))),
        *_column(),
        ("days", _arithmetic("__truediv__", _SECONDS)),
    ]


def _read_time(rule: ColumnRule) -> list[tuple[str, Any]]:
    """Texts or times as a Series of times by the clock of the rule's zone; NaT where they are none."""
    if rule.kind == "duration":
        return [("times", _call(pd.to_timedelta, errors="coerce"))]
    if rule.kind == "time":
        # pandas has no dtype for times of day: each becomes that time on 1 January 1970, by way of its text
        return [
            ("texts", FunctionTransformer(methodcaller("astype", "str"))),
            ("of a day", FunctionTransformer(methodcaller("radd", "1970-01-01 "))),
            ("times", _call(pd.to_datetime, format="ISO8601", errors="coerce")),
        ]
    given = {"format": "mixed", "dayfirst": rule.form.startswith("d"), "errors": "coerce"}
    if not rule.zone:
        return [("times", _call(pd.to_datetime, **given))]
    return [
        ("times", _call(pd.to_datetime, utc=True, **given)),
        ("of times", FunctionTransformer(attrgetter("dt"))),
        ("in the zone", FunctionTransformer(methodcaller("tz_convert", rule.zone))),
        ("of zone", FunctionTransformer(attrgetter("dt"))),
        ("on the clock", FunctionTransformer(methodcaller("tz_localize", None))),
    ]


def _text_steps() -> Pipeline:
    """Words and pairs of words; `complete_text` adds what is made of them."""
    parts = [(f"{n} words", Pipeline([("hashes", clone(hashing(n))), *_TO_COME])) for n in (1, 2)]
    return Pipeline(
        [("there", FunctionTransformer(methodcaller("fillna", ""))), ("words", FeatureUnion(parts)), *_TO_COME]
    )


_TO_COME = [("directions", FunctionTransformer(accept_sparse=True))]


def complete_text(steps: FeatureUnion | Pipeline, directions: TextDirections) -> None:
    """Put the words, weights and directions of a column of free text into its steps, which have been fitted."""
    if isinstance(steps, FeatureUnion):
        steps = dict(steps.transformer_list)["values"]
    words = steps.named_steps["words"]
    # texts of single words have no pairs
    words.transformer_list = [
        step for step, part in zip(words.transformer_list, directions.parts, strict=True) if len(part.buckets)
    ]
    for part, matrix in zip(directions.parts, directions.matrices(), strict=True):
        if not len(part.buckets):
            continue
        known = VarianceThreshold()
        known.variances_ = np.zeros(BUCKETS)
        known.variances_[part.buckets] = 1.0
        known.n_features_in_ = BUCKETS
        weights = TfidfTransformer()
        weights.idf_ = part.idf
        reduced = TruncatedSVD(directions.n_columns)
        reduced.components_ = matrix.T
        reduced.n_features_in_ = weights.n_features_in_ = len(part.idf)
        # asked for by the check that it is fitted
        reduced.explained_variance_ = reduced.explained_variance_ratio_ = np.ones(directions.n_columns)
        reduced.singular_values_ = np.ones(directions.n_columns)
        own = dict(words.transformer_list)[f"{part.n} words"]
        own.steps[-1] = ("directions", Pipeline([("known", known), ("weights", weights), ("directions", reduced)]))
    # the numbers of words and of pairs are added
    both = np.vstack([np.eye(directions.n_columns)] * len(words.transformer_list))
    steps.steps[-1] = ("sum", linear_map(both, np.zeros(len(both))))

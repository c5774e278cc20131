"""report: one page on a fitted model as text, HTML or JSON, with a hash that two people can compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import fill, indent
from typing import Any, Protocol

import numpy as np
from dask.utils import format_bytes, format_time
from sklearn.utils.validation import check_is_fitted

from dkl.data.dataset import Dataset
from dkl.data.store.outputs import written_whole
from dkl.errors import StoreError
from dkl.features.feature_map import FeatureMap
from dkl.methods.checkpoints import digest_of, what_counts
from dkl.methods.provenance import Provenance, fingerprint_of
from dkl.model_io import content_hash, load_model
from dkl.protocols.estimators import Estimator

# Rounds of a curve that a page shows at most.
_LINES = 12
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "th{text-align:left;vertical-align:top;padding-right:1.5rem;font-weight:600}code{font-size:13px}"
)
# By this beginning a page is recognised as one of ours, which may be replaced.
_HEAD = "<!doctype html><html lang='en'><meta charset='utf-8'><title>"


class Reported(Estimator, Protocol):
    """A fitted feature learner, or a fitted machine."""

    feature_map_: FeatureMap
    seed_: int


@dataclass(frozen=True)
class Report:
    """One page on a fitted model; print it.

    Parameters
    ----------
    facts : mapping of str to mapping
        Section by section, as JSON values.

    Attributes
    ----------
    hash : str
        Of the rows and of all that was learned: equal for two fits with the same bits on the same rows.
    """

    facts: Mapping[str, Mapping[str, Any]]

    @property
    def hash(self) -> str:
        return str(self.facts["hash"]["fit"])

    def __repr__(self) -> str:
        return "\n\n".join(_text_section(name, facts) for name, facts in self.facts.items() if facts)

    def _repr_html_(self) -> str:
        return "".join(_html_section(name, facts) for name, facts in self.facts.items() if facts)

    def to_json(self) -> str:
        """The facts as one JSON object."""
        return json.dumps(self.facts, indent=2)

    def to_html(self) -> str:
        """The page, whole: it needs no other file."""
        title = escape(str(self.facts["model"]["estimator"]))
        head = f"{_HEAD}{title}</title><style>{_STYLE}</style>"
        return f"{head}<body><h1>{title}</h1>{self._repr_html_()}</body></html>\n"

    def write(self, path: str | Path) -> None:
        """Write the page in the format of the suffix: .html, .json or .txt; it appears when it is complete.

        Raises
        ------
        ValueError
            For another suffix, or a URL.
        OSError
            With the path, when it cannot be written; a page that was there is as it was.
        """
        # A page is one file: styles and the picture are in it.
        formats = {".html": self.to_html, ".json": self.to_json, ".txt": lambda: f"{self!r}\n"}
        page = formats[check_format(path)]()
        with written_whole(path) as hidden:
            hidden.write_text(page, encoding="utf-8")


def check_format(path: str | Path) -> str:
    """The suffix that a page is written under, or ValueError for another one."""
    suffix = Path(path).suffix
    if suffix not in (".html", ".json", ".txt"):
        raise ValueError(f"the report goes to {str(path)!r}; its name must end in .html, .json or .txt")
    return suffix


def is_page(path: Path) -> bool:
    """Whether a file is a page that `Report.write` wrote."""
    text = path.read_bytes() if path.is_file() else b""
    if path.suffix == ".html":
        return text.startswith(_HEAD.encode()) and b"<h2>hash</h2>" in text
    if path.suffix == ".txt":
        return text.startswith(b"model\n  estimator") and b"\n\nhash\n  fit" in text
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(facts, dict) and {"model", "hash", "settings", "versions"} <= facts.keys()


def report(model: Reported | str | Path, data: Dataset | Mapping[str, Dataset] | None = None) -> Report:
    """One page on a fitted model: its rows, settings, reading, memory, scores, curve, bounds, versions, and its hash.

    Parameters
    ----------
    model : fitted estimator of dkl, or the path or URL of a saved one
    data : Dataset, mapping of str to Dataset, or None
        Rows to score: every split of a dataset that has splits, else all of its rows. None scores nothing and reads
        no row.

    Returns
    -------
    Report

    Raises
    ------
    NotFittedError
        Before `fit`.
    StoreError
        If `data` lies in the store of the fit and its rows are no longer those of the fit.
    ValueError
        If there are rows to score and the model does not predict, or they have no target.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> import dkl
    >>> X, y = load_iris(return_X_y=True)
    >>> model = dkl.KernelClassifier(dkl.RandomFeatures(n_features=20, random_state=0), random_state=0).fit(X, y)
    >>> page = dkl.report(model)
    >>> page.facts["data"]["rows"], page.hash == dkl.report(model).hash
    (150, True)
    """
    fitted: Reported = load_model(model) if isinstance(model, str | Path) else model
    check_is_fitted(fitted)
    # A machine holds the learner of its features; a feature learner is reported by itself.
    page = _Page(fitted, getattr(fitted, "features_", fitted), getattr(fitted, "provenance_", Provenance()))
    scored: Mapping[str, Dataset]
    if isinstance(data, Dataset):
        scored = {name: data[name] for name in data.splits} or {data.name or "all": data}
    elif data is None or (isinstance(data, Mapping) and all(isinstance(part, Dataset) for part in data.values())):
        scored = data or {}
    else:
        raise TypeError(f"data is of type {type(data).__name__}; expected a Dataset, or a dict of Datasets by name")
    # All rows are checked before the first score, since scores of rows that have changed would say something else.
    for dataset in scored.values():
        page.check_unchanged(dataset)
    return Report(
        {
            "model": page.model_facts(),
            "hash": page.hashes(),
            "data": page.data_facts(),
            "settings": page.settings(),
            "work": page.work_facts(),
            "scores": {name: page.score(name, dataset) for name, dataset in scored.items()},
            "curve": page.curve(),
            "bounds": page.bounds(),
            "versions": dict(page.origin.versions or {}),
        }
    )


@dataclass(frozen=True, eq=False)
class _Page:
    """The sections of a report as facts: JSON values by the words that a person reads."""

    model: Any
    features: Any
    origin: Provenance

    def check_unchanged(self, dataset: Dataset) -> None:
        """Raise StoreError where rows of the store and the split of the fit are no longer those that were fitted."""
        origin = self.origin
        same = origin.fingerprint and dataset.store and (dataset.store, dataset.name) == (origin.store, origin.view)
        if same and fingerprint_of(dataset) != origin.fingerprint:
            view = f"split {dataset.name!r} of " if dataset.name else ""
            raise StoreError(
                f"{view}{dataset.store!r} has changed since the fit: its fingerprint is "
                f"{fingerprint_of(dataset)[:12]}, that of the fit {origin.fingerprint[:12]}; fit the model again, or "
                "give the rows that it was fitted on"
            )

    def model_facts(self) -> dict[str, Any]:
        """What the model is, and how its fit ended, as it says itself."""
        model, features = self.model, self.features
        facts: dict[str, Any] = {"estimator": type(model).__name__}
        if features is not model:
            facts["features"] = type(features).__name__
        feature_map = model.feature_map_
        facts["columns of the map"] = feature_map.n_features
        # Steps are found, not drawn from a family.
        if hasattr(features, "family_"):
            facts["family"] = repr(features.family_)
        facts |= {"scaling": "none" if feature_map.scaler is None else feature_map.scaler.kind}
        facts["seeds"] = {"features": int(features.seed_), "model": int(model.seed_)}
        endings = {"ended": getattr(features, "message_", "")}
        if features is not model:
            endings["linear model ended"] = getattr(model, "message_", "")
        endings["penalty"] = getattr(model, "alpha_", None)
        # what predictions of numbers are worth, where the fit knows
        posterior, kept = getattr(model, "posterior_", None), getattr(model, "conformal_", None)
        endings["noise"] = None if posterior is None else posterior.describe()
        endings["coverage"] = None if kept is None else kept.describe()
        return facts | {name: value for name, value in endings.items() if value not in ("", None)}

    def hashes(self) -> dict[str, str]:
        """The hash of the fit, and those of what it is made of: where two fits differ, these say in what."""
        learned = content_hash(self.model)
        return {
            "fit": digest_of(self.origin.fingerprint, learned),
            "rows": self.origin.fingerprint or "unknown: a hash of these rows would read them all",
            "settings and version": digest_of(what_counts(self.model), (self.origin.versions or {}).get("dkl")),
            "learned": learned,
        }

    def data_facts(self) -> dict[str, Any]:
        """The rows of the fit, as they were then: nothing is read."""
        origin = self.origin
        if not origin.place:
            return {"place": "unknown: the model was fitted by an older dkl"}
        facts: dict[str, Any] = {"place": origin.place, "split": origin.view or "all rows"}
        # Rows in memory have no fingerprint unless they were hashed on the way, and weights may stand for repeated
        # rows.
        facts |= {"fingerprint": origin.fingerprint or "none", "rows": origin.rows, "columns": origin.columns}
        if origin.total_weight != origin.rows:
            facts["total weight"] = origin.total_weight
        return {**facts, "task": origin.task or "none"} | ({"classes": dict(origin.targets)} if origin.targets else {})

    def settings(self) -> dict[str, Any]:
        """Every parameter, those of the features among them, as text where JSON has no such value."""
        hidden = {"checkpoint", "progress", "features"}
        given = {
            name: value
            for name, value in self.model.get_params(deep=True).items()
            if name not in hidden and name.rpartition("__")[2] not in hidden
        }
        return {
            name: value if isinstance(value, str | int | float | None) else repr(value) for name, value in given.items()
        }

    def work_facts(self) -> dict[str, Any]:
        """What the fit took: time, passes, bytes and memory; empty for a model of an older dkl."""
        origin = self.origin
        if not origin.finished:
            return {}
        return {
            "finished": origin.finished,
            "seconds": round(origin.seconds, 3),
            **({"computed on": origin.device} if origin.device else {}),
            "passes": origin.passes,
            "bytes read": origin.bytes_read,
            "blocks from the cache": origin.cache_hits,
            "memory promised for the passes (bytes a process)": origin.promised_bytes,
            "memory that this process grew by (bytes, with what is held beside the passes and compiled code)": (
                origin.used_bytes
            ),
        }

    def score(self, name: str, dataset: Dataset) -> dict[str, Any]:
        """Accuracy or R^2 on the rows of that name."""
        if not hasattr(self.model, "score"):
            raise ValueError(
                f"{type(self.model).__name__} maps rows and predicts nothing, so {name!r} has no score; report a "
                "KernelClassifier or KernelRegressor, or leave data away"
            )
        if not dataset.n_rows:
            return {"rows": 0}
        measure = "accuracy" if dataset.task == "classification" else "r2"
        return {measure: float(self.model.score(dataset)), "rows": dataset.n_rows}

    def curve(self) -> dict[str, Any]:
        """The metrics of each round by name, empty for a learner of one pass; null where a round has no number."""
        history: Sequence[Mapping[str, Any]] = (
            getattr(self.features, "history_", None) or getattr(self.model, "history_", None) or ()
        )
        # Where rounds add features, only those that say how many there are make points of a curve.
        lines = [line for line in history if "n_features" in line] or list(history)
        names = [name for name in (lines[0] if lines else ()) if np.isscalar(lines[0][name])]
        curve: dict[str, Any] = {}
        for name in names:
            values = [line.get(name) for line in lines]
            # JSON has neither NaN nor infinity.
            curve[name] = [float(value) if value is not None and np.isfinite(value) else None for value in values]
        return curve

    def bounds(self) -> dict[str, Any]:
        """What each theorem guarantees for the features, or why none does."""
        bounds = getattr(self.features, "bounds_", None)
        if bounds is None:
            return {}
        if not bounds:
            return {"none": bounds.why_none}
        return {
            f"{place}. {getattr(bound, 'theorem', type(bound).__name__)}": {
                "says": repr(bound),
                "vacuous": bool(bound.is_vacuous),
            }
            for place, bound in enumerate(bounds, 1)
        }


def _lines_of(facts: Mapping[str, Any]) -> dict[str, str]:
    """The lines of a section; a setting that was left open has none."""
    return {label: _shown(label, value) for label, value in facts.items() if value is not None}


def _text_section(name: str, facts: Mapping[str, Any]) -> str:
    """A section of the page as text: its name, then a line a fact."""
    if name == "curve":
        return f"{name}\n" + indent(_curve_text(facts), "  ")
    if name == "bounds":
        return f"{name}\n" + "\n".join(indent(_bound_text(value), "  ") for value in facts.values())
    shown = _lines_of(facts)
    width = max(map(len, shown))
    lines = [f"  {label:<{width}}  {value}" for label, value in shown.items()]
    return "\n".join([name, *lines])


def _bound_text(bound: Mapping[str, Any] | str) -> str:
    """What a bound says, or why there is none."""
    return str(bound["says"]) if isinstance(bound, Mapping) else fill(bound, 100)


def _shown(label: str, value: object) -> str:
    """A value as a person reads it; the label says its unit."""
    if "bytes" in label and isinstance(value, int):
        return format_bytes(value)
    if label == "seconds" and isinstance(value, int | float):
        return format_time(value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_shown(name, part)}" for name, part in value.items())
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    # The number behind "features" is a seed.
    return f"{value:,}" if isinstance(value, int) and label != "features" else f"{value:.6g}"


def _curve_text(curve: Mapping[str, Sequence[Any]]) -> str:
    """A table of at most a dozen rounds, the last one among them."""
    n_rounds = len(next(iter(curve.values())))
    # Evenly spaced rounds, the first and the last among them.
    kept = np.unique(np.linspace(0, n_rounds - 1, min(n_rounds, _LINES)).astype(int))
    table = [["round", *curve]]
    for at in kept:
        numbers = (values[at] for values in curve.values())
        table.append([str(at), *("" if number is None else f"{number:.4g}" for number in numbers)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in table)


def _html_section(name: str, facts: Mapping[str, Any]) -> str:
    """A section of the page as HTML. Names and values come from files and users, so all of them are escaped."""
    head = f"<h2>{escape(name)}</h2>"
    if name == "curve":
        return f"{head}{_picture(facts)}<pre>{escape(_curve_text(facts))}</pre>"
    if name == "bounds":
        return head + "".join(f"<pre>{escape(_bound_text(value))}</pre>" for value in facts.values())
    rows = "".join(
        f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in _lines_of(facts).items()
    )
    return f"{head}<table>{rows}</table>"


def _picture(curve: Mapping[str, Sequence[Any]]) -> str:
    """The loss over the features, or over the rounds, drawn as a line."""
    ys = curve.get("held_out_loss") or []
    name = "held-out loss" if any(y is not None for y in ys) else "loss"
    # The loss on held-out rows says more than that on the fitted ones, so it is drawn where a learner has it.
    ys = ys if name == "held-out loss" else curve.get("loss") or curve.get("objective") or []
    xs = curve.get("n_features") or list(range(len(ys)))
    points = np.array([(x, y) for x, y in zip(xs, ys, strict=True) if x is not None and y is not None])
    # A line needs two points; a learner of one round has no curve.
    if len(points) < 2:
        return ""
    low, span = points.min(axis=0), np.maximum(np.ptp(points, axis=0), np.finfo(float).tiny)
    # The data's corners go to those of the picture; the vertical axis of SVG points down, hence the negative height.
    at = (points - low) / span * [560, -140] + [20, 150]
    # One decimal is a tenth of a pixel.
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
    text = f"{name} over {'features' if 'n_features' in curve else 'rounds'}: {points[0, 1]:.4g} to {points[-1, 1]:.4g}"
    line = f"<polyline points='{path}' fill='none' stroke='#1f77b4' stroke-width='2'/>"
    return f"<svg viewBox='0 0 600 190' width='600' role='img'>{line}<text x='20' y='180'>{escape(text)}</text></svg>"

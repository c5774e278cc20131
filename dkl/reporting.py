"""report: one page on a fitted model as text, HTML or JSON, with a hash that two people can compare."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path
from textwrap import fill, indent
from typing import Any

import numpy as np
from dask.utils import format_bytes, format_time
from sklearn.utils.validation import check_is_fitted

from dkl.data.dataset import Dataset
from dkl.data.store.outputs import FileKind, check_file, written_whole
from dkl.errors import StoreError
from dkl.explain.importance import Importance, ImportanceDisplay, importance
from dkl.figure import Display, pyplot
from dkl.methods.checkpoints import digest_of, effective_parameters
from dkl.methods.provenance import Provenance, summary_of
from dkl.model_io import content_hash, load_model
from dkl.model_selection.held_out_scores import Answers, held_out_answers, metric_facts, scores_of
from dkl.plain_text import html_table, in_columns, plain_text, shortened
from dkl.plots.answers import AnswersDisplay
from dkl.solvers.losses import LOG_LINK

# Rounds of a curve that a page shows at most.
_LINES = 12
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "th{text-align:left;vertical-align:top;padding-right:1.5rem;font-weight:600}code{font-size:13px}"
    "table.scores td,table.scores th{padding:.2rem 1.2rem .2rem 0;border-bottom:1px solid #ddd}"
    "table.scores td{text-align:right}table.scores td:first-child{text-align:left}img{max-width:100%}"
    "details{margin-top:2rem;color:#444}summary{cursor:pointer;font-weight:600}pre{white-space:pre-wrap}"
    # on a telephone nothing is cut: paths break, and a table that is too wide is pushed aside by a finger
    "h1,code,td{overflow-wrap:anywhere}table{display:block;overflow-x:auto}"
    "@media(max-width:40rem){body{font-size:13px}h1{font-size:1.4rem}th,"
    "table.scores td,table.scores th{padding-right:.6rem;overflow-wrap:normal}}"
)
_FRAMED = " class='scores'"
# What a page shows at once, in this order; the rest is provenance, folded below.
_SHOWN = ("scores", "errors", "importance", "chosen")
_TITLES = {
    "scores": "How good it is",
    "errors": "What its errors look like",
    "importance": "What it goes by",
    "chosen": "What was chosen, and why",
}
# What the scores of conformal intervals are, of losses that have their own.
_UNITS = {**dict.fromkeys(LOG_LINK, "(a deviance residual)"), "pinball": "of the outer quantiles"}
# What stands before the one sentence of a choice.
_IN_SHORT = "in short"
# Rows that importance is measured on, and columns that a page lists.
_IMPORTANCE_ROWS, _LISTED = 10_000, 20
# By this beginning a page is recognised as one of ours, which may be replaced.
_HEAD = "<!doctype html><html lang='en'><meta charset='utf-8'><title>"


@dataclass(frozen=True)
class Report:
    """One page on a fitted model; print it.

    Parameters
    ----------
    facts : mapping of str to mapping
        Section by section, as JSON values.
    displays : mapping of str to Display
        The picture of a section; drawn into pages of HTML where matplotlib is there.

    Attributes
    ----------
    hash : str
        Of the rows and of all that was learned: equal for two fits with the same bits on the same rows.
    """

    facts: Mapping[str, Mapping[str, Any]]
    displays: Mapping[str, Display] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        return str(self.facts["hash"]["fit"])

    def __repr__(self) -> str:
        return self.text()

    def text(self, *, verbose: bool = False) -> str:
        """The page as text.

        Parameters
        ----------
        verbose : bool
            With all reasons of a choice; else they are one sentence.
        """
        chosen = self.facts.get("chosen", {})
        if not verbose and _IN_SHORT in chosen:
            chosen = {_IN_SHORT: chosen[_IN_SHORT]}
        ordered = [*_SHOWN, *(name for name in self.facts if name not in _SHOWN)]
        sections = {**self.facts, "chosen": chosen}
        return plain_text("\n\n".join(_text_section(name, facts) for name in ordered if (facts := sections.get(name))))

    def _repr_html_(self) -> str:
        shown = "".join(
            f"<h2>{_TITLES[name]}</h2>{_html_body(name, facts)}{self._drawn(name)}"
            for name in _SHOWN
            if (facts := self.facts.get(name))
        )
        folded = "".join(
            f"<h2>{escape(name)}</h2>{_html_body(name, facts)}"
            for name, facts in self.facts.items()
            if facts and name not in _SHOWN
        )
        return (
            f"{shown}<details><summary>Where it comes from: rows, settings, work, versions</summary>{folded}</details>"
        )

    def _drawn(self, name: str) -> str:
        """The picture of a section, inline; nothing without one, or without matplotlib; why it could not be drawn."""
        if name not in self.displays:
            return ""
        drawn = BytesIO()
        try:
            figure = self.displays[name].plot().figure_
            try:
                figure.savefig(drawn, format="png", dpi=110)
            finally:
                pyplot().close(figure)
        except ImportError:
            return ""
        except Exception as error:  # whatever a font or a number does to a picture, the page's facts are there
            return f"<p>The picture could not be drawn: {escape(f'{type(error).__name__}: {error}')}</p>"
        return f"<p><img alt='{name}' src='data:image/png;base64,{b64encode(drawn.getvalue()).decode()}'/></p>"

    def to_json(self) -> str:
        """The facts as one JSON object."""
        return json.dumps(self.facts, indent=2)

    def to_html(self) -> str:
        """The page, whole: it needs no other file and no network."""
        title = escape(self.title)
        head = f"{_HEAD}{title}</title><meta name='viewport' content='width=device-width'><style>{_STYLE}</style>"
        return f"{head}<body><h1>{title}</h1>{self._repr_html_()}</body></html>\n"

    @property
    def title(self) -> str:
        """The model, its target, the rows that it was fitted to, and the day."""
        model, data = self.facts["model"], self.facts["data"]
        target = f" of {data['target']!r}" if "target" in data else ""
        rows = f" on {data['rows']:,} rows of {data['place']}" if "rows" in data else ""
        day = f", {model['fitted on']}" if "fitted on" in model else ""
        return f"{model['estimator']}{target}{rows}{day}"

    def write(self, path: str | Path) -> None:
        """Write the page in the format of the suffix: .html, .json or .txt; it appears when it is complete.

        A page that was written before is replaced, nothing else.

        Raises
        ------
        ValueError
            For another suffix, or a URL.
        FileExistsError
            If there is a file that is no such page.
        OSError
            With the path, when it cannot be written; a page that was there is as it was.
        """
        # A page is one file: styles and the picture are in it.
        formats = {".html": self.to_html, ".json": self.to_json, ".txt": lambda: f"{self.text(verbose=True)}\n"}
        suffix = check_format(path)
        check_file(path, PAGE)
        page = formats[suffix]()
        with written_whole(path, PAGE) as hidden:
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
        return b"model\n  estimator" in text and b"\n\nhash\n  fit" in text
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(facts, dict) and {"model", "hash", "settings", "versions"} <= facts.keys()


PAGE = FileKind("report", is_page)
"""Files that `Report.write` writes, and replaces."""


def report(model: Any, data: Dataset | Mapping[str, Dataset] | None = None) -> Report:
    """One page on a fitted model, to be shown: its scores and errors, what it goes by, why; below, where it comes from.

    Scores have standard errors and a baseline beside them: what an answer that looks at no column would reach. Errors
    and importance are those on the split "test" where it is there. Folded below: rows, settings, reading, memory,
    curve, bounds, versions, and the hash of the fit.

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
    fitted = load_model(model) if isinstance(model, str | Path) else model
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
    # Rows without a score, those of a split whose rows were all dropped, show no errors.
    answers = {name: page.answers(name, dataset) for name, dataset in scored.items() if dataset.n_rows}
    shown = "test" if "test" in answers else next(iter(answers), "")
    found = page.importance(scored[shown]) if shown else None
    displays: dict[str, Display] = {}
    if shown:
        displays["errors"] = AnswersDisplay(answers[shown], f"{shown}: {scored[shown].n_rows:,} rows")
    if found is not None:
        displays["importance"] = ImportanceDisplay(found, _LISTED)
    facts = {
        "model": page.model_facts(),
        "hash": page.hashes(),
        "data": page.data_facts(),
        "settings": page.settings(),
        "work": page.work_facts(),
        "scores": {
            name: {"rows": dataset.n_rows, **(metric_facts(scores_of(answers[name])) if name in answers else {})}
            for name, dataset in scored.items()
        },
        "errors": answers[shown].errors if shown else {},
        "importance": {} if found is None else {found.names[g]: float(found.strengths[g]) for g in found.order},
        "chosen": page.chosen(),
        "curve": page.curve(),
        "bounds": page.bounds(),
        "versions": dict(page.origin.versions or {}),
    }
    return Report(facts, displays)


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
        if same and dataset.fingerprint != origin.fingerprint:
            view = f"split {dataset.name!r} of " if dataset.name else ""
            raise StoreError(
                f"{view}{dataset.store!r} has changed since the fit: its fingerprint is "
                f"{dataset.fingerprint[:12]}, that of the fit {origin.fingerprint[:12]}; fit the model again, or "
                "give the rows that it was fitted on"
            )

    def model_facts(self) -> dict[str, Any]:
        """Facts about the model and the end of its fit, by name."""
        model, features = self.model, self.features
        facts: dict[str, Any] = {"estimator": type(model).__name__}
        facts |= {"fitted on": self.origin.finished.partition("T")[0]} if self.origin.finished else {}
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
        scores = _UNITS.get(getattr(model, "loss_", ""), "of the score" if hasattr(model, "classes_") else "")
        endings["coverage"] = None if kept is None else kept.describe(scores or "of the prediction")
        return facts | {name: value for name, value in endings.items() if value not in ("", None)}

    def hashes(self) -> dict[str, str]:
        """The hash of the fit, and hashes of its parts, which show in which part two fits differ."""
        learned = content_hash(self.model)
        return {
            "fit": digest_of(self.origin.fingerprint, learned),
            "rows": self.origin.fingerprint or "unknown: a hash of these rows would read them all",
            "settings and version": digest_of(
                effective_parameters(self.model), (self.origin.versions or {}).get("dkl")
            ),
            "learned": learned,
        }

    def data_facts(self) -> dict[str, Any]:
        """The rows of the fit, as they were then: nothing is read."""
        origin = self.origin
        if not origin.place:
            return {"place": "unknown: the model was fitted by an older dkl"}
        facts: dict[str, Any] = {"place": origin.place, "split": origin.view or "all rows"}
        facts |= {"target": origin.target} if origin.target else {}
        # Rows in memory have no fingerprint unless they were hashed on the way, and weights may stand for repeated
        # rows.
        facts |= {"fingerprint": origin.fingerprint or "none", "rows": origin.rows, "columns": origin.columns}
        if origin.total_weight != origin.rows:
            facts["total weight"] = origin.total_weight
        if origin.targets and hasattr(self.model, "predict") and not hasattr(self.model, "classes_"):
            # counts are whole numbers, which were taken for labels when they were stored
            return {**facts, "task": "regression"}
        return {**facts, "task": origin.task or "none"} | ({"classes": dict(origin.targets)} if origin.targets else {})

    def chosen(self) -> dict[str, str]:
        """The machine's choice in one sentence, and its reasons by the words that they begin with."""
        reasons = {name: why for name, _, why in (r.partition(": ") for r in getattr(self.model, "reasons_", ()))}
        summary = summary_of(self.model)
        return {_IN_SHORT: summary, **reasons} if summary else reasons

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
        """Time, passes, bytes and memory of the fit; empty for a model of an older dkl."""
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
            "memory that this process grew by (bytes, with compiled code)": origin.used_bytes,
        }

    def answers(self, name: str, dataset: Dataset) -> Answers:
        """The predictions of the model for the rows of this name, and their scores."""
        if not hasattr(self.model, "score"):
            raise ValueError(
                f"{type(self.model).__name__} maps rows and predicts nothing, so {name!r} has no score; report a "
                "KernelClassifier or KernelRegressor, or leave data away"
            )
        return held_out_answers(self.model, dataset)

    def importance(self, dataset: Dataset) -> Importance:
        """The importance of each column for predictions, from a sample of the rows."""
        return importance(self.model, dataset.thin(_IMPORTANCE_ROWS), progress=False)

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
        """The bound of each theorem that applies to the features, or why none applies."""
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
    if name == "scores":
        return f"{name}\n" + indent("\n".join(in_columns(_score_cells(facts))), "  ")
    if name == "errors" and "confusion" in facts:
        return f"{name}\n" + indent("\n".join(in_columns(_confusion_cells(facts["confusion"]))), "  ")
    shown = _lines_of(dict(list(facts.items())[:_LISTED]) if name == "importance" else facts)
    lines = in_columns([[shortened(label), value] for label, value in shown.items()])
    return f"{name}\n" + indent("\n".join(lines), "  ")


def _score_cells(facts: Mapping[str, Any]) -> list[list[str]]:
    """The scores of all splits as texts: the heads, then a row a metric, with its interval and the baseline."""
    cells = [["rows", "metric", "score", "95 % interval", "without the columns"]]
    # What the model has not seen comes first.
    for name, scores in sorted(facts.items(), key=lambda item: item[0] == "train"):
        rows, baseline = f"{name} ({scores['rows']:,})", scores.get("baseline", {})
        for metric, (low, high) in scores.get("intervals", {}).items():
            guess = f"{baseline[metric]:.4g}" if metric in baseline else ""
            spoken = metric.replace("_", " ")
            cells.append([rows, spoken, f"{scores[metric]:.4g}", f"{low:.4g} to {high:.4g}", guess])
        if "intervals" not in scores:
            cells.append([rows, "no rows are left", "", "", ""])
    return cells


def _confusion_cells(confusion: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """The confusions as texts; of many labels those that are given another one most often."""
    pairs = [(label, other, rows) for label, row in confusion.items() for other, rows in row.items() if other != label]
    wrong = sorted((pair for pair in pairs if pair[2]), key=lambda pair: -pair[2])[:_LINES]
    return [
        ["true", "predicted", "rows"],
        *([shortened(label), shortened(other), f"{rows:,.0f}"] for label, other, rows in wrong),
    ]


def _bound_text(bound: Mapping[str, Any] | str) -> str:
    """A bound as a sentence, or why there is none."""
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
    return "\n".join(in_columns(table, left=0))


def _html_body(name: str, facts: Mapping[str, Any]) -> str:
    """A section of the page as HTML. Names and values come from files and users, so all of them are escaped."""
    if name == "curve":
        return f"<pre>{escape(_curve_text(facts))}</pre>"
    if name == "bounds":
        return "".join(f"<pre>{escape(_bound_text(value))}</pre>" for value in facts.values())
    if name == "scores":
        return html_table(_score_cells(facts), _FRAMED)
    if name == "errors" and "confusion" in facts:
        return f"<p>The most frequent errors:</p>{html_table(_confusion_cells(facts['confusion']), _FRAMED)}"
    if name == "chosen":
        reasons = {label: value for label, value in _lines_of(facts).items() if label != _IN_SHORT}
        why = "".join(f"<p><b>{escape(label)}</b>: {escape(value)}</p>" for label, value in reasons.items())
        if _IN_SHORT not in facts:
            return why
        return f"<p>{escape(facts[_IN_SHORT])}</p><details><summary>why</summary>{why}</details>"
    shown = _lines_of(dict(list(facts.items())[:_LISTED]) if name == "importance" else facts)
    rows = "".join(f"<tr><th>{escape(label)}</th><td>{escape(value)}</td></tr>" for label, value in shown.items())
    table = f"<table>{rows}</table>"
    # The picture says it; the numbers are there for who looks for them.
    return f"<details><summary>numbers</summary>{table}</details>" if name == "importance" else table

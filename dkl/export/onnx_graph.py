"""A fitted model as an ONNX graph, from raw columns to labels and probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, partialmethod
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import DTypeLike
from sklearn.utils.validation import check_is_fitted

from dkl.data.ingest.column_rules import ColumnRule
from dkl.data.ingest.encoding import TableEncoding, takes_columns_as_they_are
from dkl.data.store.outputs import FileKind, check_file, written_whole
from dkl.encodings.fitted import FittedEncoding
from dkl.encodings.keys import category_parts
from dkl.export.predictor import ScoringModel, nystrom_of
from dkl.features.families import Gaussian, Laplacian, Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.scaling import Scaler
from dkl.kernels.generic import mapped, scaled
from dkl.kernels.scale import normal_scores
from dkl.kernels.tiles import checked_dtype
from dkl.uncertainty.posterior import CoefficientPosterior
from dkl.version import __version__

Operand: TypeAlias = Union["Symbol", np.ndarray, np.generic, float]

ROWS = -1
# Symbols are numbered in the order in which they are made, so that each has a larger number than what it is made of.
_SERIAL = itertools.count()
OLDEST_OPSET, DEFAULT_OPSET = 15, 18
# Protocol buffers, the format of ONNX files, hold at most 2 GiB; the rest of the graph takes less than a MiB.
_MOST_BYTES = (1 << 31) - (1 << 20)


def to_onnx(
    model: ScoringModel,
    path: str | Path | None = None,
    *,
    dtype: str | None = None,
    opset: int = DEFAULT_OPSET,
    std: bool = False,
) -> Any:
    """The fitted model as an ONNX graph; see `dkl.methods.saving.SavingMixin.to_onnx`."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError("to_onnx needs onnx, which is not installed: pip install 'dkl[onnx]'") from error
    if path is not None:
        check_file(path, GRAPH)
    newest = onnx.defs.onnx_opset_version()
    if not isinstance(opset, Integral) or not OLDEST_OPSET <= opset <= newest:
        raise ValueError(
            f"opset is {opset!r}; the graph needs operations of opset {OLDEST_OPSET} or newer, and the installed onnx "
            f"{onnx.__version__} knows them up to {newest}"
        )
    check_is_fitted(model, getattr(model, "_fitted_by", None))
    posterior: CoefficientPosterior | None = getattr(model, "posterior_", None) if std else None
    if std and posterior is None:
        raise ValueError(
            f"std=True, and this {type(model).__name__} has no deviations: these need an exact fit of numbers, "
            "KernelRegressor(solver='newton')"
        )
    feature_map = model.feature_map_
    compute = checked_dtype(dtype or getattr(model, "features_", model).dtype)
    if posterior is not None and 8 * feature_map.n_features**2 > _MOST_BYTES:
        raise ValueError(
            f"the factor of the deviations of {feature_map.n_features:,} features takes more than the 2 GB that an "
            "ONNX file holds; leave out std, or use model.save(store)"
        )
    size = sum(_written_bytes(part, compute) for part, _ in feature_map.split(np.ones(feature_map.n_features)))
    if size > _MOST_BYTES:
        raise ValueError(
            f"the frequencies take {size / 1e9:.1f} GB as a matrix of {compute}, and an ONNX file holds 2 GB; use "
            "fewer features, or model.save(store)"
        )
    # The arithmetic of dkl is run once with symbols in place of rows; what it does to them becomes the graph.
    inputs, rows = _rows(getattr(model, "encoding_", None), feature_map.n_columns, compute)
    xp = SymbolNamespace(inputs[0])
    features = _features(xp, rows, feature_map, compute)
    outputs = _answers(xp, model, features, compute) if hasattr(model, "_fitted_by") else {"features": features}
    if posterior is not None:
        # noise sqrt(1 + |(phi - center) R^-1|^2), in double precision up to the root
        whitened = xp.matmul(xp.asarray(features, np.dtype(np.float64)) - posterior.center, posterior.inverse_factor())
        relative = xp.asarray(xp.sqrt(xp.sum(whitened * whitened, axis=1) + 1.0), compute)
        vector = model._has_one_target()
        outputs["std"] = relative * posterior.noise[0] if vector else relative[:, None] * posterior.noise
    shared = [symbol.name for symbol in inputs if symbol.name in outputs]
    if shared:
        raise ValueError(f"the column {shared[0]!r} has the name of an output of the graph; rename it and fit again")
    comments = _input_comments(getattr(model, "encoding_", None))
    made = _Writer(onnx, {symbol.serial: name for name, symbol in outputs.items()}).model(
        inputs, outputs, opset, comments
    )
    made.doc_string = f"{type(model).__name__} of dkl {__version__}"
    if path is not None:
        with written_whole(path, GRAPH) as hidden:
            onnx.save(made, str(hidden))
    return made


def is_graph(path: Path) -> bool:
    """Whether a file is certain to be a graph that `to_onnx` wrote: it says who produced it."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return bool(onnx.load(str(path), load_external_data=False).producer_name == "dkl")
    except DecodeError:
        return False


GRAPH = FileKind("ONNX graph", is_graph)
"""Files that `to_onnx` writes, and replaces."""


def _written_bytes(feature_map: FeatureMap, dtype: np.dtype) -> int:
    """What the frequencies or landmarks of a map take in a file."""
    # Harmonics, steps and single columns write no matrix of frequencies; structured ones are written out, since ONNX
    # has no Hadamard transform.
    if feature_map.activation in ("harmonics", "identity", "steps"):
        return 0
    # Landmarks and what whitens their similarities are in double precision, whatever the dtype of the graph.
    if feature_map.activation == "nystrom":
        return feature_map.projection.nbytes
    return feature_map.n_angles * feature_map.n_columns * dtype.itemsize


def _features(xp: Any, rows: Symbol, feature_map: FeatureMap, dtype: np.dtype) -> Any:
    """The features of encoded rows, (n, m)."""
    if feature_map.activation == "combined":
        parts = feature_map.split(np.ones(feature_map.n_features))
        return xp.concat([_features(xp, rows, part, dtype) * ones.astype(dtype) for part, ones in parts], axis=1)
    rows_of_map, unscaled_map = with_quantiles(xp, rows, feature_map)
    if feature_map.activation == "nystrom":
        return _kernel_columns(xp, rows_of_map, unscaled_map, dtype)
    return xp.concat(mapped(xp, rows_of_map, unscaled_map, dtype), axis=1)


def _kernel_columns(xp: Any, X: Any, feature_map: FeatureMap, dtype: DTypeLike) -> Any:
    """k(x, Z) A of rows, amplitudes included, of shape (n, m), as `dkl.kernels.landmark_tiles.NystromProduct`.

    Distances, kernels and the product with A are in double precision: A is as large as the kernel matrix of the
    landmarks is near to singular.

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d)
    feature_map : FeatureMap
        Of similarities by a Gaussian, Laplacian or Matern kernel of smoothness 0.5, 1.5 or 2.5.
    dtype : dtype
        Of the result.

    Raises
    ------
    TypeError
        For other kernels.
    """
    nystrom = nystrom_of(feature_map)
    kernel, rows = nystrom.kernel, scaled(xp, X, feature_map.scaler, xp.float64)
    if nystrom.metric is not None:
        rows = rows * nystrom.metric if nystrom.metric.ndim == 1 else xp.matmul(rows, nystrom.metric)
    Z = nystrom.landmarks / getattr(kernel, "sigma", 1.0)
    rows = rows / getattr(kernel, "sigma", 1.0)
    if isinstance(kernel, Gaussian):
        similarities = xp.exp(_distances(rows, Z, lambda gap: gap * gap) * -0.5)
    elif isinstance(kernel, Laplacian):
        similarities = xp.exp(-_distances(rows, Z, xp.abs))
    elif isinstance(kernel, Matern) and kernel.nu in (0.5, 1.5, 2.5):
        r = xp.sqrt(_distances(rows, Z, lambda gap: gap * gap)) * float(np.sqrt(2.0 * kernel.nu))
        similarities = xp.exp(-r)
        if kernel.nu > 0.5:
            similarities = similarities * ((r + 1.0) if kernel.nu == 1.5 else (r * r * (1.0 / 3.0) + r + 1.0))
    else:
        raise TypeError(
            f"a graph has no operator for 'nystrom' features of {kernel!r}; fit NystromFeatures with a Gaussian, "
            "Laplacian or Matern(0.5, 1.5 or 2.5) kernel, or use model.predictor() in this process"
        )
    return xp.asarray(xp.matmul(similarities, nystrom.whitening * feature_map.amplitudes), dtype=dtype)


def _distances(rows: Any, Z: np.ndarray, of_gap: Any) -> Any:
    """sum_c of_gap(x_c - z_c), of shape (n, l), column by column.

    By |x|^2 + |z|^2 - 2 x.z a row near a landmark would lose half of its digits, and all columns at once would take an
    array of rows times landmarks times columns.
    """
    total = of_gap(rows[:, 0][:, None] - Z[:, 0])
    for c in range(1, Z.shape[1]):
        total = total + of_gap(rows[:, c][:, None] - Z[:, c])
    return total


def _rows(encoding: TableEncoding | FittedEncoding | None, width: int, dtype: np.dtype) -> tuple[list[Symbol], Symbol]:
    """The inputs of the graph, and the encoded rows."""
    table = encoding.table if isinstance(encoding, FittedEncoding) else encoding
    added = isinstance(encoding, FittedEncoding)
    if table is None or encoding is None or (takes_columns_as_they_are(table) and not added):
        X = graph_input("X", width, dtype if encoding is None else np.result_type(dtype, encoding.dtype))
        return [X], X
    if names := table.text_names:
        raise TypeError(
            f"the columns {names} hold free text, whose words ONNX has no operation to hash: model.to_sklearn() has "
            "it, model.predictor() answers rows in this process; or fit without these columns"
        )
    # A tensor has one type, so a table of texts and numbers becomes one input a column: texts for a category, double
    # precision where the column's rule keeps it, and for days.
    inputs = []
    for rule in table.rules:
        number = np.dtype(np.float64) if rule.double or rule.parts else dtype
        inputs.append(graph_input(rule.name, 1, np.str_ if rule.kind in ("category", "code") else number))
    xp = SymbolNamespace(inputs[0])
    encoded = {
        rule.name: _encoded(xp, rule, column, table)
        for rule, column in zip(table.rules, inputs, strict=True)
        if rule.kind != "code"
    }
    if isinstance(encoding, FittedEncoding):
        encoded |= _numbers_of_codes(xp, encoding, inputs, encoded)
    return inputs, xp.concat([part for rule in table.rules for part in encoded[rule.name]], axis=1)


def _input_comments(encoding: TableEncoding | FittedEncoding | None) -> dict[str, str]:
    """What inputs hold of columns whose values no graph reads, by name."""
    comments = {}
    for rule in () if encoding is None else encoding.rules:
        if rule.kind == "date":
            comments[rule.name] = f"days since 1970-01-01 by the clock of {rule.zone or 'the column'}"
        elif rule.parts:
            comments[rule.name] = "days" if rule.kind == "duration" else "part of a day since midnight"
        elif rule.kind == "number" and rule.form:
            comments[rule.name] = f"the number that the text writes as {rule.form} in place of 1234.56"
    return comments


def _of_times(xp: SymbolNamespace, rule: ColumnRule, days: Symbol) -> list[Symbol]:
    """The encoded columns of days on the clock of the rule's zone, NaN where missing: see `encoded_days`."""
    is_missing = Symbol("IsNaN", [days], days.shape, np.dtype(bool))
    there = xp.where(is_missing, np.float64(0.0), days)
    whole, columns = xp.floor(there), []
    for part in rule.parts:
        if part == "days":
            columns.append(days if rule.filling is None else xp.where(is_missing, np.float64(rule.filling), days))
            continue
        if part == "hour":
            turns = there - whole
        elif part == "weekday":
            # 1970-01-01 was a Thursday, three days after a Monday
            weeks = (whole + 3.0) / 7.0
            turns = weeks - xp.floor(weeks)
        else:
            turns = _day_of_year(xp, whole) / 365.25
        for circle in (xp.cos, xp.sin):
            # what is missing lies in the middle of the circle
            columns.append(xp.where(is_missing, np.float64(0.0), circle(turns * (2.0 * np.pi))))
    return [*columns, xp.asarray(is_missing, np.dtype(np.float64))] if rule.flags_missing else columns


def _day_of_year(xp: SymbolNamespace, day: Symbol) -> Symbol:
    """Whole days since 1970-01-01 as days since 1 January of their year: Hinnant's days_from_civil, turned round.

    Years are counted from 1 March on, so that the day that leap years have comes last, in eras of 400 years.
    """
    era = xp.floor((day + 719_468.0) / 146_097.0)
    of_era = day + 719_468.0 - era * 146_097.0
    leaps = xp.floor(of_era / 1_460.0) - xp.floor(of_era / 36_524.0) + xp.floor(of_era / 146_096.0)
    year = xp.floor((of_era - leaps) / 365.0)
    from_march = of_era - (year * 365.0 + xp.floor(year / 4.0) - xp.floor(year / 100.0))
    # January and February are of the next year; before March there are 59 days, and one more in a leap year
    fourth, hundredth = year / 4.0, year / 100.0
    by_four = xp.asarray(equal(fourth - xp.floor(fourth), 0.0), np.dtype(np.float64))
    by_hundred = xp.asarray(equal(hundredth - xp.floor(hundredth), 0.0), np.dtype(np.float64))
    by_era = xp.asarray(equal(year, 0.0), np.dtype(np.float64))
    is_leap = by_four - by_hundred + by_era
    return xp.where(from_march >= 306.0, from_march - 306.0, from_march + 59.0 + is_leap)


def _numbers_of_codes(
    xp: SymbolNamespace, encoding: FittedEncoding, inputs: list[Symbol], encoded: dict[str, list[Symbol]]
) -> dict[str, list[Symbol]]:
    """What columns of codes become, by name: see `CodePlaces.with_numbers`, whose order this is."""
    rules = encoding.table.rules
    if encoding.unknown == "error":
        raise TypeError("a graph cannot refuse unknown values, as unknown='error' does; use model.save(store)")
    parts = category_parts(encoding.table, encoding.numbers)
    codes: dict[str, Symbol] = {}
    for rule, column in zip(rules, inputs, strict=True):
        if rule.name in parts and rule.categories:
            _check_empty_texts(rule)
            codes[rule.name] = _places(xp, column, keys_strings=list(rule.categories))
        elif rule.name in parts:
            # whole numbers are below 2^24, so that single precision has them all
            single = xp.asarray(encoded[rule.name][0], np.dtype(np.float32))
            codes[rule.name] = _places(xp, single, keys_floats=[float(value) for value in parts[rule.name].values])
    names = [*((rule.name,) for rule in rules if rule.kind == "code"), *((name,) for name in encoding.taken)]
    # what is added to a column comes behind it
    made = {rule.name: list(encoded.get(rule.name, ())) for rule in rules}
    for cross, table in zip([*names, *encoding.crosses], encoding.tables, strict=True):
        code = codes[cross[0]]
        for name in cross[1:]:
            other = codes[name]
            has_both = xp.asarray((code > 0) & (other > 0), code.dtype)
            code = ((code - 1) * parts[name].n_values + other) * has_both
        numbers = xp.take(table.astype(encoding.dtype), code)
        # A centred number is the encoded one, the first that its own column becomes, less the mean beside it.
        centred = [number for by, number in encoding.centred if (by,) == cross]
        n_learned = table.shape[1] - len(centred)
        made[cross[0]].append(xp.take(numbers, np.arange(n_learned), axis=1))
        for place, number in enumerate(centred, n_learned):
            made[cross[0]].append(encoded[number][0] - xp.take(numbers, np.array([place]), axis=1))
    return made


def _places(xp: SymbolNamespace, column: Symbol, **values: list[Any]) -> Symbol:
    """The place of each row among known values, from 1; 0 for others: (n,) int64.

    Parameters
    ----------
    xp : SymbolNamespace
    column : Symbol
    **values
        The known values, under the name that the encoder has for their type.
    """
    (known,) = values.values()
    attributes = {**values, "values_int64s": list(range(1, len(known) + 1)), "default_int64": 0}
    code = Symbol("LabelEncoder", [column], (ROWS, 1), np.dtype("int64"), attributes, domain="ai.onnx.ml")
    return xp.reshape(code, (ROWS,))


def _check_empty_texts(rule: ColumnRule) -> None:
    """Raise TypeError for a column with both missing texts and empty ones."""
    if rule.missing and "" in rule.categories:
        raise TypeError(
            f"column {rule.name!r} has both missing texts and empty ones, which a graph cannot tell apart; replace the "
            "empty texts before fit"
        )


def _encoded(xp: SymbolNamespace, rule: ColumnRule, column: Symbol, encoding: TableEncoding) -> list[Symbol]:
    """The encoded columns of a raw one, in the dtype of those of `TableEncoding`."""
    dtype = encoding.dtype
    if rule.kind == "category":
        _check_empty_texts(rule)
        # A graph has no missing text, so the empty one stands for it. Where missing texts are filled they have a column
        # of the encoder here, which is dropped again below: such a row has zeros in all categories.
        names = list(rule.categories)
        if rule.fill is not None and "" not in names:
            names.append("")
        attributes = {"cats_strings": names, "zeros": 0 if encoding.unknown == "error" else 1}
        ones = Symbol("OneHotEncoder", [column], (ROWS, 1, len(names)), xp.float32, attributes, domain="ai.onnx.ml")
        width = len(rule.output_names)
        flat = xp.reshape(ones, (ROWS, len(names)))
        return [xp.asarray(flat if width == len(names) else xp.take(flat, np.arange(width), axis=1), dtype)]
    if rule.parts:
        return [xp.asarray(part, dtype) for part in _of_times(xp, rule, column)]
    # A missing number arrives as NaN, as pandas has it.
    is_missing = Symbol("IsNaN", [column], column.shape, np.dtype(bool))
    value = xp.asarray(column, dtype)
    if rule.fill is not None:
        value = xp.where(is_missing, dtype.type(rule.fill), value)
    return [value, xp.asarray(is_missing, dtype)] if rule.flags_missing else [value]


def _answers(xp: SymbolNamespace, model: ScoringModel, features: Symbol, dtype: np.dtype) -> dict[str, Symbol]:
    """The outputs of a graph of a classifier or regressor, by name."""
    scorer = model._scorer
    scores = xp.matmul(features, scorer.coef.T.astype(dtype)) + scorer.intercept
    if not hasattr(model, "classes_"):
        has_one, link = model._has_one_target(), model._link
        if link == "log":
            scores = xp.exp(scores)
        elif link == "sorted":
            # The quantiles of each target in ascending order, by exchanges of neighbours: they are few.
            columns, together = [scores[:, k] for k in range(scores.shape[1])], len(model._quantiles)
            for first in range(0, len(columns), together):
                for last in range(first + together - 1, first, -1):
                    for k in range(first, last):
                        pair = [columns[k], columns[k + 1]]
                        columns[k : k + 2] = [Symbol(op, pair, pair[0].shape, pair[0].dtype) for op in ("Min", "Max")]
            scores = xp.stack(columns, axis=1)
        return {"prediction": xp.reshape(scores, (ROWS,)) if has_one else scores}
    # The class of the largest score, or of the sign where two classes share one score.
    if scores.shape[1] == 1:
        code = xp.asarray(xp.reshape(scores, (ROWS,)) > 0, np.dtype("int64"))
    else:
        code = Symbol("ArgMax", [scores], (ROWS,), np.dtype("int64"), {"axis": 1, "keepdims": 0})
    # Graphs know texts, booleans, and numbers of 64 bits.
    kinds = {"b": np.bool_, "i": np.int64, "u": np.int64, "f": np.float64}
    classes = model.classes_
    is_text = classes.dtype.kind in "OU"
    labels = np.array([str(c) for c in classes], dtype=object) if is_text else classes.astype(kinds[classes.dtype.kind])
    answers = {"label": xp.take(labels, code)}
    if hasattr(model, "predict_proba"):
        answers["probabilities"] = _probabilities(xp, scores, model._multiplier)
    return {**answers, "scores": scores}


def _probabilities(xp: SymbolNamespace, scores: Symbol, multiplier: float | None) -> Symbol:
    """Class probabilities from scores, (n, K), by the same rules as `dkl.methods.predicting.probabilities`."""
    scaled = scores if multiplier is None else scores * multiplier
    if scores.shape[1] == 1:
        return _sigmoid(xp.concat([-scaled, scaled], axis=1))
    if multiplier is not None:
        return Symbol("Softmax", [scaled], scaled.shape, scaled.dtype, {"axis": 1})
    # One model against the others for each class: the K probabilities are divided by their sum, and rows without any
    # share it.
    shares = _sigmoid(scaled)
    total = xp.sum(shares, axis=1)[:, None]
    return shares / xp.where(total > 0, total, np.ones(1, total.dtype))


def _sigmoid(x: Symbol) -> Symbol:
    """1 / (1 + exp(-x)) as one node: it does not overflow."""
    return Symbol("Sigmoid", [x], x.shape, x.dtype)


class _Writer:
    """Symbols as nodes; each known array is written once."""

    def __init__(self, onnx: ModuleType, names: dict[int, str]) -> None:
        self._onnx, self._names = onnx, names
        self._written: dict[int, tuple[str, np.ndarray]] = {}
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def model(
        self, inputs: Sequence[Symbol], outputs: dict[str, Symbol], opset: int, comments: Mapping[str, str]
    ) -> Any:
        """The whole graph: the nodes of the outputs in their order, behind the inputs, which have `comments`."""
        helper = self._onnx.helper
        # ONNX wants nodes in an order in which each has its inputs, which is the order in which symbols were made.
        for symbol in needed(list(outputs.values())):
            self.write(symbol)

        def typed(name: str, symbol: Symbol, comment: str = "") -> Any:
            """The name, type and shape of an input or output; the number of rows is left open."""
            shape = ["rows" if size == ROWS else size for size in symbol.shape]
            is_text = symbol.dtype.kind in "OU"
            kind = self._onnx.TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(symbol.dtype)
            return helper.make_tensor_value_info(name, kind, shape, doc_string=comment)

        graph = helper.make_graph(
            self.nodes,
            "dkl",
            [typed(symbol.name, symbol, comments.get(symbol.name, "")) for symbol in inputs],
            [typed(name, symbol) for name, symbol in outputs.items()],
            initializer=self.constants,
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
        made = helper.make_model(graph, opset_imports=opsets, producer_name="dkl", producer_version=__version__)
        # The oldest version that has these operations: older runtimes can read the file.
        made.ir_version = helper.find_min_ir_version_for(opsets)
        return made

    def write(self, symbol: Symbol) -> None:
        """The node of a symbol whose inputs have theirs."""
        if not symbol.op:
            self._names[symbol.serial] = symbol.name
            return
        attributes = dict(symbol.attributes)
        if symbol.op == "Cast":
            attributes["to"] = self._onnx.helper.np_dtype_to_tensor_dtype(symbol.dtype)
        name = self._names.setdefault(symbol.serial, f"dkl/{symbol.op.lower()}_{len(self.nodes)}")
        made = self._onnx.helper.make_node(
            symbol.op, [self._input(operand) for operand in symbol.inputs], [name], domain=symbol.domain, **attributes
        )
        self.nodes.append(made)

    def _input(self, operand: Symbol | np.ndarray) -> str:
        """The name of a node's operand; a known array becomes a constant of the graph when it is first asked for."""
        if isinstance(operand, Symbol):
            return self._names[operand.serial]
        # The array is kept beside its name: another one could otherwise get the address of one that is gone.
        name, _ = self._written.setdefault(id(operand), (f"dkl/constant_{len(self._written)}", operand))
        if len(self._written) > len(self.constants):
            self.constants.append(self._onnx.numpy_helper.from_array(np.asarray(operand, order="C"), name))
        return name


def with_quantiles(xp: Any, X: Any, feature_map: FeatureMap) -> tuple[Any, FeatureMap]:
    """Rows scaled by quantiles, and the map without that scaler; others as they are.

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d)
    feature_map : FeatureMap
    """
    scaler = feature_map.scaler
    if scaler is None or scaler.kind != "quantile":
        return X, feature_map
    return quantile_scores(xp, xp.asarray(X, dtype=xp.float64), scaler), replace(feature_map, scaler=None)


def quantile_scores(xp: Any, X: Any, scaler: Scaler) -> Any:
    """Each column through its empirical distribution to normal scores, as `dkl.kernels.scale.scale_rows` in float64.

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d), float64
    scaler : Scaler
        Of kind "quantile", with q knots a column.
    """
    knots = np.asarray(scaler.knots)
    scores = normal_scores(len(knots))
    # column by column, filled up with infinities to one less than a power of two, which halving needs: (d, 2^k - 1)
    length = (1 << len(knots).bit_length()) - 1
    knots = np.pad(knots.T, ((0, 0), (0, length - len(knots))), constant_values=np.inf)
    last = len(scores) - 1
    # the knots of column j stand at j * length of one flat table
    flat, base = knots.ravel(), np.arange(len(knots)) * knots.shape[1]
    left = _count(xp, X, flat, base, knots.shape[1], strict=True)
    right = _count(xp, X, flat, base, knots.shape[1], strict=False)
    # Each number lies between two knots of its column; before the first and after the last one both are the same.
    below, above = xp.clip(left - 1, 0, last), xp.clip(left, 0, last)
    low, high = xp.take(flat, below + base), xp.take(flat, above + base)
    gap = high - low
    # Between knots the score is interpolated. Equal knots have no gap, and any divisor will do: such numbers are ties.
    share = (X - low) / xp.where(gap > 0, gap, xp.ones_like(gap))
    start, stop = xp.take(scores, below), xp.take(scores, above)
    between = start + xp.clip(share, 0.0, 1.0) * (stop - start)
    # Several knots at one value mean that many rows have it: its score is the middle of theirs.
    tied = 0.5 * (stop + xp.take(scores, xp.clip(right - 1, 0, last)))
    scaled = xp.where(right > left, tied, between)
    return xp.where(scaler.passthrough[None, :], X, scaled)


def _count(xp: Any, X: Any, flat: np.ndarray, base: np.ndarray, length: int, *, strict: bool) -> Any:
    """How many knots of its column lie below each number (or at it, unless `strict`), by halving."""
    # Bisection in a fixed number of steps, as a graph needs it: there are 2^k - 1 knots, infinities among them.
    place, step = base, (length + 1) // 2
    while step:
        probe = xp.take(flat, place + (step - 1))
        is_below = probe < X if strict else probe <= X
        place = place + xp.asarray(is_below, dtype=np.dtype("int64")) * step
        step //= 2
    return place - base


@dataclass(frozen=True, eq=False)
class Symbol:
    """The result of one ONNX operation; `op` is "" for an input of the graph.

    Parameters
    ----------
    op : str
    inputs : sequence of Symbol or ndarray
    shape : tuple of int
        With `ROWS` for the number of rows.
    dtype : dtype
    attributes : mapping
        Of the node.
    domain : str
        "ai.onnx.ml" for operations that are not of ONNX itself.
    name : str
        Of an input.
    """

    # With this NumPy leaves `array + symbol` to the operators of the symbol.
    __array_ufunc__ = None

    op: str
    inputs: Sequence[Any]
    shape: tuple[int, ...]
    dtype: np.dtype
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    serial: int = field(default_factory=lambda: next(_SERIAL))

    @property
    def T(self) -> Symbol:
        return Symbol("Transpose", [self], self.shape[::-1], self.dtype)

    def __getitem__(self, index: tuple[int | slice | None, ...]) -> Symbol:
        """Whole axes, single places along an axis, and new axes."""
        out, axis = self, 0
        for entry in index:
            if isinstance(entry, int):
                shape = out.shape[:axis] + out.shape[axis + 1 :]
                out = Symbol("Gather", [out, np.array(entry)], shape, self.dtype, {"axis": axis})
                continue
            if entry is None:
                shape = (*out.shape[:axis], 1, *out.shape[axis:])
                out = Symbol("Unsqueeze", [out, np.array([axis])], shape, self.dtype)
            axis += 1
        return out

    def _with(self, op: str, other: Operand, *, swapped: bool = False, dtype: DTypeLike | None = None) -> Symbol:
        """The node of an operation of two operands; a number takes the dtype of the symbol, as in NumPy."""
        other = other if isinstance(other, Symbol) else np.asarray(other, self.dtype)
        # Of a - b and b - a only the order of the operands differs.
        pair = [other, self] if swapped else [self, other]
        return Symbol(op, pair, _broadcast(self.shape, other.shape), np.dtype(dtype or self.dtype))

    def __neg__(self) -> Symbol:
        return Symbol("Neg", [self], self.shape, self.dtype)

    __add__ = __radd__ = partialmethod(_with, "Add")
    __sub__, __rsub__ = partialmethod(_with, "Sub"), partialmethod(_with, "Sub", swapped=True)
    __mul__ = __rmul__ = partialmethod(_with, "Mul")
    __truediv__, __pow__ = partialmethod(_with, "Div"), partialmethod(_with, "Pow")
    __gt__, __ge__ = partialmethod(_with, "Greater", dtype=bool), partialmethod(_with, "GreaterOrEqual", dtype=bool)
    __lt__, __le__ = partialmethod(_with, "Less", dtype=bool), partialmethod(_with, "LessOrEqual", dtype=bool)
    __and__ = partialmethod(_with, "And", dtype=bool)


def graph_input(name: str, width: int, dtype: DTypeLike) -> Symbol:
    """The input `name` of a graph: a matrix of any number of rows and `width` columns, of a dtype."""
    return Symbol("", [], (ROWS, width), np.dtype(dtype), name=name)


def equal(x: Symbol, other: Operand) -> Symbol:
    """x == other, elementwise; symbols themselves are compared by identity."""
    return x._with("Equal", other, dtype=bool)


def _elementwise(op: str, x: Symbol) -> Symbol:
    """The node of a function of each number."""
    return Symbol(op, [x], x.shape, x.dtype)


class SymbolNamespace:
    """The functions of the array API that the maps of `dkl.kernels.generic` are written in, for symbols.

    Parameters
    ----------
    rows : Symbol
        Any input of the graph: it knows how many rows there are.
    """

    float32, float64 = np.dtype("float32"), np.dtype("float64")

    def __init__(self, rows: Symbol) -> None:
        self._rows = rows

    cos, sin, exp, log, sqrt, abs, floor = (
        staticmethod(partial(_elementwise, op)) for op in ("Cos", "Sin", "Exp", "Log", "Sqrt", "Abs", "Floor")
    )

    def asarray(self, x: Operand, dtype: np.dtype | None = None) -> Any:
        if not isinstance(x, Symbol):
            return np.asarray(x, dtype=dtype)
        return x if dtype is None or dtype == x.dtype else Symbol("Cast", [x], x.shape, np.dtype(dtype))

    def zeros(self, shape: tuple[int, int], dtype: DTypeLike) -> Symbol:
        """Of as many rows as the graph is given."""
        # The number of rows is known when the graph runs, so the shape of the zeros is computed there.
        count = Symbol("Shape", [self._rows], (1,), np.dtype("int64"), {"start": 0, "end": 1})
        target = Symbol("Concat", [count, np.array(shape[1:])], (2,), np.dtype("int64"), {"axis": 0})
        return Symbol("Expand", [np.zeros((1, shape[1]), dtype), target], shape, np.dtype(dtype))

    def ones(self, shape: tuple[int, int], dtype: DTypeLike) -> Symbol:
        """Of as many rows as the graph is given."""
        return self.zeros(shape, dtype) + 1

    def zeros_like(self, x: Symbol) -> Symbol:
        return x * 0

    def ones_like(self, x: Symbol) -> Symbol:
        return x * 0 + 1

    def concat(self, parts: Sequence[Any], axis: int = 0) -> Any:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return Symbol("Concat", parts, tuple(shape), parts[0].dtype, {"axis": axis})

    def stack(self, parts: Sequence[Any], axis: int = 0) -> Any:
        index = (*(slice(None),) * axis, None)
        return self.concat([part[index] for part in parts], axis=axis)

    def take(self, x: Symbol | np.ndarray, places: Symbol | np.ndarray, axis: int = 0) -> Any:
        # What is known beforehand is computed now, and becomes a constant of the graph.
        if not isinstance(x, Symbol) and not isinstance(places, Symbol):
            return np.take(x, places, axis=axis)
        shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
        return Symbol("Gather", [x, places], shape, x.dtype, {"axis": axis})

    def matmul(self, x: Symbol, matrix: np.ndarray) -> Symbol:
        return Symbol("MatMul", [x, matrix], (x.shape[0], matrix.shape[1]), x.dtype)

    def where(self, condition: Symbol, x: Operand, y: Operand) -> Symbol:
        # ONNX refuses operands of two dtypes: a plain number takes the dtype of the other operand.
        dtype = x.dtype if isinstance(x, Symbol) else np.asarray(y).dtype if not isinstance(y, Symbol) else y.dtype
        operands = [operand if isinstance(operand, Symbol) else np.asarray(operand, dtype) for operand in (x, y)]
        shape = _broadcast(condition.shape, _broadcast(operands[0].shape, operands[1].shape))
        return Symbol("Where", [condition, *operands], shape, dtype)

    def clip(self, x: Symbol, low: float, high: float) -> Symbol:
        return Symbol("Clip", [x, np.asarray(low, x.dtype), np.asarray(high, x.dtype)], x.shape, x.dtype)

    def reshape(self, x: Symbol, shape: tuple[int, ...]) -> Symbol:
        return Symbol("Reshape", [x, np.array(shape)], shape, x.dtype)

    def sum(self, x: Symbol, axis: int) -> Symbol:
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        return Symbol("ReduceSum", [x, np.array([axis])], shape, x.dtype, {"keepdims": 0})

    def log1p(self, x: Symbol) -> Symbol:
        return self.log(x + 1)

    def isfinite(self, x: Symbol) -> Symbol:
        # x - x is NaN for NaN and for infinities, else 0.
        return equal(x - x, 0)

    def all(self, x: Symbol) -> bool:
        """A graph raises no errors: rows are taken to pass the checks of the arithmetic."""
        return True


def _broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an operation of two arrays, by NumPy's rules; an unknown number of rows stays unknown."""
    # Shapes that are known are NumPy's to combine, with its errors.
    if ROWS not in (*first, *second):
        return np.broadcast_shapes(first, second)
    length = max(len(first), len(second))
    pairs = zip((1,) * (length - len(first)) + first, (1,) * (length - len(second)) + second, strict=True)
    return tuple(ROWS if ROWS in pair else max(pair) for pair in pairs)


def needed(outputs: Sequence[Symbol]) -> list[Symbol]:
    """Every symbol that the outputs are made of, each after what it is made of."""
    reached: dict[int, Symbol] = {}
    waiting = list(outputs)
    while waiting:
        symbol = waiting.pop()
        if symbol.serial not in reached:
            reached[symbol.serial] = symbol
            waiting.extend(operand for operand in symbol.inputs if isinstance(operand, Symbol))
    # Inputs have smaller numbers than what is made of them, so this order is one in which nodes can be computed.
    return [reached[serial] for serial in sorted(reached)]

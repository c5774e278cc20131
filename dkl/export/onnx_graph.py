"""A fitted model as an ONNX graph, from raw columns to labels and probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import DTypeLike
from sklearn.utils.validation import check_is_fitted

from dkl.data.ingest.column_rules import ColumnRule
from dkl.data.ingest.encoding import TableEncoding, takes_columns_as_they_are
from dkl.data.store.outputs import FileKind, check_file, written_whole
from dkl.encodings.fitted import FittedEncoding
from dkl.encodings.keys import category_parts
from dkl.export.predictor import ScoringModel
from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import NystromProjection
from dkl.kernels.generic import mapped, scaled
from dkl.kernels.tiles import checked_dtype
from dkl.uncertainty.posterior import CoefficientPosterior
from dkl.version import __version__

Operand: TypeAlias = Union["Symbol", np.ndarray, np.generic, float]

ROWS = -1
# Symbols are numbered in the order of their creation, so that each has a larger number than its operands.
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
    """Bytes of the frequencies or landmarks of a map in a file."""
    # Harmonics, steps and single columns write no matrix of frequencies; structured ones are written out, since ONNX
    # has no Hadamard transform.
    if feature_map.activation in ("harmonics", "identity", "steps"):
        return 0
    # Landmarks and what whitens their similarities are in double precision, whatever the dtype of the graph.
    if feature_map.activation == "nystrom":
        return feature_map.projection.nbytes
    return feature_map.n_angles * feature_map.n_columns * dtype.itemsize


def _features(xp: Any, rows: Any, feature_map: FeatureMap, dtype: np.dtype) -> Any:
    """The features of encoded rows, (n, m)."""
    if feature_map.activation == "combined":
        parts = feature_map.split(np.ones(feature_map.n_features))
        return xp.concat([_features(xp, rows, part, dtype) * ones.astype(dtype) for part, ones in parts], axis=1)
    if feature_map.activation == "nystrom":
        return _kernel_columns(xp, rows, feature_map, dtype)
    return xp.concat(mapped(xp, rows, feature_map, dtype), axis=1)


def _kernel_columns(xp: Any, X: Any, feature_map: FeatureMap, dtype: DTypeLike) -> Any:
    """k(x, Z) A of rows, amplitudes included, of shape (n, m), as `dkl.kernels.landmark_tiles.NystromProduct`.

    Distances, kernels and the product with A are in double precision: A is as large as the kernel matrix of the
    landmarks is near to singular.

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d)
    feature_map : FeatureMap
        Of similarities by a kernel that NumPy's universal functions make of distances.
    dtype : dtype
        Of the result.

    Raises
    ------
    TypeError
        For other kernels.
    """
    nystrom = feature_map.projection_as(NystromProjection)
    kernel, rows = nystrom.kernel, scaled(xp, X, feature_map.scaler, xp.float64)
    if not getattr(kernel, "is_elementary", False):
        raise TypeError(
            f"a graph has no operator for 'nystrom' features of {kernel!r}; fit NystromFeatures with a Gaussian, "
            "Laplacian or Matern(0.5, 1.5 or 2.5) kernel, or use model.predictor() in this process"
        )
    if nystrom.metric is not None:
        rows = rows * nystrom.metric if nystrom.metric.ndim == 1 else xp.matmul(rows, nystrom.metric)
    rows, Z = rows / kernel.sigma, nystrom.landmarks / kernel.sigma
    distances = _distances(rows, Z, np.abs) if kernel.norm == "l1" else np.sqrt(_distances(rows, Z, np.square))
    similarities = kernel.of_distances(distances)
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
    """For each input whose raw values a graph cannot read, such as dates: the number that it expects instead."""
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
    is_missing = np.isnan(days)
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
    by_four = xp.asarray(fourth == xp.floor(fourth), np.dtype(np.float64))
    by_hundred = xp.asarray(hundredth == xp.floor(hundredth), np.dtype(np.float64))
    by_era = xp.asarray(year == 0.0, np.dtype(np.float64))
    is_leap = by_four - by_hundred + by_era
    return xp.where(from_march >= 306.0, from_march - 306.0, from_march + 59.0 + is_leap)


def _numbers_of_codes(
    xp: SymbolNamespace, encoding: FittedEncoding, inputs: list[Symbol], encoded: dict[str, list[Symbol]]
) -> dict[str, list[Symbol]]:
    """The numbers that replace columns of codes, by name, in the order of `CodePlaces.with_numbers`."""
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
    is_missing = np.isnan(column)
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
                        pair = columns[k], columns[k + 1]
                        columns[k : k + 2] = [np.minimum(*pair), np.maximum(*pair)]
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


# The operation of each of NumPy's universal functions that the arithmetic of dkl uses, and those that return truth.
_OPERATIONS: dict[Any, str] = {
    np.add: "Add",
    np.subtract: "Sub",
    np.multiply: "Mul",
    np.divide: "Div",
    np.power: "Pow",
    np.minimum: "Min",
    np.maximum: "Max",
    np.greater: "Greater",
    np.greater_equal: "GreaterOrEqual",
    np.less: "Less",
    np.less_equal: "LessOrEqual",
    np.equal: "Equal",
    np.bitwise_and: "And",
    np.isnan: "IsNaN",
    np.negative: "Neg",
    np.absolute: "Abs",
    np.cos: "Cos",
    np.sin: "Sin",
    np.exp: "Exp",
    np.log: "Log",
    np.sqrt: "Sqrt",
    np.floor: "Floor",
}
_TRUTHS = {"Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal", "And", "IsNaN"}


@dataclass(frozen=True, eq=False)
class Symbol(NDArrayOperatorsMixin):
    """The result of one ONNX operation; `op` is "" for an input of the graph.

    Operators and NumPy's universal functions of symbols are symbols.

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

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Any:
        """The node of a universal function; a plain number takes the dtype of the first symbol, as in NumPy."""
        if ufunc is np.square:
            return operands[0] * operands[0]
        op = _OPERATIONS.get(ufunc)
        if op is None or method != "__call__" or options:
            return NotImplemented
        dtype = next(operand.dtype for operand in operands if isinstance(operand, Symbol))
        given = [operand if isinstance(operand, Symbol) else np.asarray(operand, dtype) for operand in operands]
        shape = given[0].shape if len(given) == 1 else _broadcast(given[0].shape, given[1].shape)
        return Symbol(op, given, shape, np.dtype(bool) if op in _TRUTHS else dtype)


def graph_input(name: str, width: int, dtype: DTypeLike) -> Symbol:
    """The input `name` of a graph: a matrix of any number of rows and `width` columns, of a dtype."""
    return Symbol("", [], (ROWS, width), np.dtype(dtype), name=name)


class SymbolNamespace:
    """The functions of the array API that the maps of `dkl.kernels.generic` are written in, for symbols.

    Parameters
    ----------
    rows : Symbol
        Any input of the graph: it knows how many rows there are.
    """

    float32, float64, int64 = np.dtype("float32"), np.dtype("float64"), np.dtype("int64")
    cos, sin, exp, log, sqrt, abs, floor = np.cos, np.sin, np.exp, np.log, np.sqrt, np.abs, np.floor

    def __init__(self, rows: Symbol) -> None:
        self._rows = rows

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"ONNX graphs of dkl have no function {name!r}, so that these features cannot be exported: compute them by "
            "the functions of dkl.export.onnx_graph.SymbolNamespace"
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
        return x - x == 0

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
    """Every symbol on which the outputs depend, each after its operands."""
    reached: dict[int, Symbol] = {}
    waiting = list(outputs)
    while waiting:
        symbol = waiting.pop()
        if symbol.serial not in reached:
            reached[symbol.serial] = symbol
            waiting.extend(operand for operand in symbol.inputs if isinstance(operand, Symbol))
    # Operands have smaller numbers than their results, so that nodes can be computed in this order.
    return [reached[serial] for serial in sorted(reached)]

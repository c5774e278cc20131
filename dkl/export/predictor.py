"""Predictor: a fitted model boiled down to a few arrays, for services that answer one row at a time, or very many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import sparse

from dkl.data.checks import check_rows, shown_value, spoken_names
from dkl.data.frames import is_frame
from dkl.data.ingest.dates import DATE_KINDS
from dkl.data.ingest.encoding import TableEncoding
from dkl.data.ingest.precision import EXACT
from dkl.data.other_frames import as_pandas_rows
from dkl.data.soundness import check_sound
from dkl.encodings.fitted import FittedEncoding
from dkl.explain.model import model_of
from dkl.explain.wave_pass import dense
from dkl.features.activations import Activation, function_of
from dkl.features.feature_map import ActivationName, FeatureMap, combined_map
from dkl.features.nystrom_projection import NystromProjection
from dkl.features.scaling import Scaler
from dkl.kernels.maps import map_rows
from dkl.kernels.scale import linear_part, scale_dense
from dkl.kernels.sincos import write_waves
from dkl.kernels.slopes import linear_slopes
from dkl.kernels.threads import one_blas_thread
from dkl.linear.answers import Scorer, chosen_codes, probabilities
from dkl.methods.offered import offered_unless
from dkl.protocols.estimators import FittedModel
from dkl.solvers.losses import answered
from dkl.uncertainty.posterior import CoefficientPosterior

_LARGEST = float(np.finfo(np.float32).max)
_NUMBERS = (float, int, np.floating, np.integer, np.bool_)
_WHOLE = (int, np.integer)
# Rows from which on they are mapped in blocks, as the model maps them: the features of all rows would leave the cache.
_MANY = 64
# Multiplications of a product that no BLAS shares among threads: to limit its threads would take longer than the
# product.
_SMALL_PRODUCT = 4096

Row: TypeAlias = pd.Series | Mapping[str, object]
Rows: TypeAlias = np.ndarray | sparse.csr_array | pd.DataFrame | Row | Sequence[Row]
"""Rows of a service: encoded ones in an array or sparse matrix, raw ones by the names of their columns."""


class ScoringModel(FittedModel, Protocol):
    """A fitted model of dkl as exports need it: a scorer, and how its scores become answers."""

    classes_: np.ndarray
    _scorer: Scorer
    _multiplier: Any
    _link: str
    _quantiles: tuple[float, ...]
    _settings: Any

    def _has_one_target(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class Predictor:
    """Labels, probabilities or numbers of rows in memory, one in tens of microseconds, many at the speed of the model.

    Of fewer than 64 rows scaling, phases and amplitudes are folded into the arrays, and arithmetic is float64: answers
    agree with the model's to its own rounding, within 1e-5 of the largest for float32 and 1e-12 for float64. More rows
    are mapped as the model maps them, and have its bits. Arrays are taken as they come; `predict` of the model is the
    one that checks names, and takes stores and Dask collections.

    Parameters
    ----------
    forms : Forms
        From few rows to decision values.
    scorer : Scorer
        From many.
    raw : RowEncoder or None
        Of a model that was fitted on a data frame: what its raw columns become.
    classes : ndarray of shape (K,) or None
    multiplier : float or None
        Of the scores, for probabilities; None for those that are log odds.
    has_probabilities, has_one_target : bool
    link : {"", "log", "sorted"}
        How the scores of numbers become predictions, as of `dkl.solvers.losses.answered`.
    n_quantiles : int
        Of "sorted": the scores of each target.
    posterior : CoefficientPosterior or None
        Of an exact fit of the squared error, for deviations.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dkl.machines.kernel_machines import KernelClassifier
    >>> from dkl.methods.random_features import RandomFeatures
    >>> X, y = load_iris(return_X_y=True)
    >>> model = KernelClassifier(RandomFeatures(n_features=100, random_state=0), random_state=0).fit(X, y)
    >>> predictor = model.predictor()
    >>> int(predictor.predict(X[0])), predictor.predict(X[:2])
    (0, array([0, 0]))
    """

    forms: Forms
    scorer: Scorer
    raw: RowEncoder | None = None
    classes: np.ndarray | None = None
    multiplier: float | None = None
    has_probabilities: bool = False
    has_one_target: bool = True
    link: str = ""
    n_quantiles: int = 0
    posterior: CoefficientPosterior | None = None

    def __repr__(self) -> str:
        # one line, since the fields are large arrays
        answers = "numbers" if self.classes is None else f"{len(self.classes):,} classes"
        columns, features = len(self.forms.matrix), self.scorer.feature_map.n_features
        return f"<Predictor of {answers}: {columns:,} encoded columns, {features:,} features>"

    @classmethod
    def of(cls, model: ScoringModel) -> Self:
        """Of a fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor."""
        encoding, classes = getattr(model, "encoding_", None), getattr(model, "classes_", None)
        raw = None if encoding is None else RowEncoder(encoding)
        arrays = Forms.of(model_of(model)), model._scorer, raw
        if classes is None:
            posterior, one = getattr(model, "posterior_", None), model._has_one_target()
            link, n_quantiles = model._link, len(model._quantiles)
            return cls(*arrays, has_one_target=one, link=link, n_quantiles=n_quantiles, posterior=posterior)
        return cls(*arrays, classes, getattr(model, "_multiplier", None), hasattr(model, "predict_proba"))

    def predict(self, x: Rows, return_std: bool = False) -> Any:
        """The label or number of a row, or of each of several.

        Parameters
        ----------
        x : ndarray of shape (d,) or (n, d), scipy sparse matrix, mapping of str to value, Series, or data frame
            Encoded columns; a mapping or Series is one raw row by the names of its columns, a list of these or a frame
            several.
        return_std : bool
            The deviation of a new number too, as `KernelRegressor.predict` has it: (prediction, std).

        Raises
        ------
        ValueError
            If a row has other columns than those of `fit`, or holds NaN or infinity; if the model has no deviations.
        """
        if return_std:
            return self.predict(x), self._deviations(x)
        scores = self._scores(x)
        if self.classes is None:
            scores = answered(scores, self.link, self.n_quantiles)
            return scores[..., 0] if self.has_one_target else scores
        if scores.ndim == 1:
            # One row is answered without the overhead of array functions on one number.
            return self.classes[int(scores[0] > 0) if len(scores) == 1 else scores.argmax()]
        return self.classes[chosen_codes(scores)]

    def decision_function(self, x: Rows) -> Any:
        """Decision values of a row, or of each of several, shaped as the model's; rows and errors as of `predict`."""
        scores = self._scores(x)
        return scores[..., 0] if scores.shape[-1] == 1 else scores

    @offered_unless(
        lambda self: (
            None if self.has_probabilities else "the model has none; fit it with loss='log_loss' or calibrate=True"
        )
    )
    def predict_proba(self, x: Rows) -> np.ndarray:
        """Class probabilities (K,) of a row, or (n, K) of several; rows and errors as of `predict`.

        There where the model has them.
        """
        scores = self._scores(x)
        shares = probabilities(np.atleast_2d(scores), self.multiplier)
        return shares if scores.ndim == 2 else shares[0]

    def _deviations(self, x: Rows) -> Any:
        """The deviation of a row, or (n,) of rows; one each for several targets."""
        if self.posterior is None:
            raise ValueError(
                "the model has no deviations: these need an exact fit of numbers, KernelRegressor(solver='newton')"
            )
        rows = self._encoded(x)
        rows = rows if sparse.issparse(rows) else np.asarray(rows)
        one_row = rows.ndim == 1
        phi = map_rows(np.atleast_2d(rows) if one_row else rows, self.scorer.feature_map, self.scorer.dtype)
        deviations = self.posterior.deviations(self.posterior.lengths(phi))
        deviations = deviations[:, 0] if self.has_one_target else deviations
        return deviations[0] if one_row else deviations

    def _encoded(self, x: Rows) -> Any:
        """Rows as columns of numbers: raw ones by their encoding, others as they come."""
        rows: Any = x
        first = x[0] if isinstance(x, list | tuple) and x else x
        if self.raw is None and isinstance(first, Mapping):
            raise TypeError(
                "rows are given by the names of their columns, and the model was fitted on arrays, which have none: "
                "pass arrays, or fit on a data frame"
            )
        if self.raw is not None and not (isinstance(x, np.ndarray) or sparse.issparse(x)):
            rows = self.raw(x)
        check_sound(rows)
        return rows

    def _scores(self, x: Rows) -> np.ndarray:
        """Decision values (K,) of a row, or (n, K) of rows."""
        rows = self._encoded(x)
        if not sparse.issparse(rows):
            rows = np.asarray(rows)
            if rows.ndim != 2 or len(rows) < _MANY:
                return self.forms(rows)
        self.forms.check_width(rows)
        check_rows(rows)
        return self.scorer(rows)


@dataclass(frozen=True, eq=False)
class Forms:
    """scores = activation(x matrix + offset) coef + intercept.

    Parameters
    ----------
    matrix : ndarray of shape (d, m), float64
    offset : ndarray of shape (m,), float64
    coef : ndarray of shape (m, K), or (2 m, K) for cosines and then sines; float64
    intercept : ndarray of shape (K,), float64
    activation : str or Activation
        As of `FeatureMap`.
    order : int
        Of "arc-cosine".
    scaler : Scaler or None
        That has no linear form.
    feature_map : FeatureMap or None
        For features that are not a function of linear forms; the matrix is empty then.
    """

    matrix: np.ndarray
    offset: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray
    activation: ActivationName | Activation
    order: int = 0
    scaler: Scaler | None = None
    feature_map: FeatureMap | None = None

    @classmethod
    def of(cls, scorer: Scorer) -> Self:
        """Of a fitted linear model on single linear forms of a row, as `dkl.explain.model.model_of` makes it."""
        feature_map, coef = scorer.feature_map, scorer.coef.astype(np.float64)
        intercept = scorer.intercept.astype(np.float64)
        parts = []
        for part, own in feature_map.split(coef):
            projection = part.projection
            if isinstance(projection, NystromProjection):
                # K features that are the decision values: k(x, Z) (A coef^T) takes K products a landmark, not m.
                mixing = projection.whitening @ (own * part.amplitudes).T
                mixed = replace(projection, whitening=mixing)
                part, own = replace(part, projection=mixed, amplitudes=np.ones(len(own))), np.eye(len(own))
            parts.append((part, own))
        feature_map = parts[0][0] if len(parts) == 1 else combined_map([part for part, _ in parts])
        coef = np.concatenate([own for _, own in parts], axis=1)
        if feature_map.function is None:
            # These are no functions of single linear forms, and are mapped as the model maps them.
            empty = np.zeros((feature_map.n_columns, 0))
            return cls(empty, empty[0], coef.T, intercept, feature_map.activation, feature_map=feature_map)
        if feature_map.activation == "identity":
            # Coordinates are linear: their coefficients are slopes, and no matrix of all columns is needed.
            matrix, offset, scaler = _folded(linear_slopes(feature_map, coef), intercept, feature_map.scaler)
            return cls(matrix, offset, np.eye(len(coef)), np.zeros(1), "identity", 0, scaler)
        coef = coef * np.tile(feature_map.amplitudes, feature_map.columns_a_frequency)
        matrix, offset, scaler = linear_forms(feature_map)
        if feature_map.activation == "cos-sin" and len(coef) == 1:
            # a cos z + b sin z = |a + i b| cos(z - angle(a + i b)): half as many waves. It holds for one output only,
            # since each output has coefficients of its own.
            wave = coef[0, : matrix.shape[1]] + 1j * coef[0, matrix.shape[1] :]
            return cls(matrix, offset - np.angle(wave), np.abs(wave)[:, None], intercept, "cos", 0, scaler)
        return cls(matrix, offset, coef.T.copy(), intercept, feature_map.activation, feature_map.order, scaler)

    def __call__(self, x: ArrayLike) -> np.ndarray:
        """Decision values (K,) of a row (d,), or (n, K) of rows (n, d)."""
        x = np.asarray(x)
        self.check_width(x)
        if x.size * len(self.coef) < _SMALL_PRODUCT:
            return _finite(self._features(x) @ self.coef + self.intercept)
        with one_blas_thread():
            return _finite(self._features(x) @ self.coef + self.intercept)

    def check_width(self, x: np.ndarray) -> None:
        """Raise ValueError for rows of other columns than those of `fit`."""
        if x.shape[-1:] != self.matrix.shape[:1]:
            raise ValueError(f"rows have shape {x.shape}; the model takes {len(self.matrix)} encoded columns")

    def _features(self, x: np.ndarray) -> np.ndarray:
        """The features of a row, (m,), or of rows, (n, m)."""
        if self.feature_map is not None:
            phi = map_rows(np.atleast_2d(_finite(x)), self.feature_map, "float64")
            return phi if x.ndim == 2 else phi[0]
        if self.scaler is not None:
            # Checked before the quantiles, which would make a number of an infinity.
            x = scale_dense(np.atleast_2d(_finite(x)), self.scaler, np.dtype(np.float64)).reshape(x.shape)
        z = _finite(x @ self.matrix + self.offset)
        function = function_of(self.activation, self.order)
        if function is None:
            raise TypeError(f"{self.activation!r} features are no function of linear forms")
        if function.is_wave:
            # NumPy's cosines take ten times as long; with two columns a frequency the sines stand behind.
            width, n_columns = z.shape[-1], len(function.names)
            out = np.empty((*z.shape[:-1], n_columns * width))
            write_waves(z.reshape(-1, width), np.ones(width), 0, out.reshape(-1, n_columns * width), n_columns == 2)
            return out
        values = function.values(np, z)
        return values[0] if len(values) == 1 else np.concatenate(values, axis=-1)


def _finite(numbers: np.ndarray) -> np.ndarray:
    """The numbers, unless one of them is NaN or infinite: every stage is checked, since a cosine hides what came in."""
    if not np.isfinite(numbers).all():
        raise ValueError("a row holds NaN or infinity, or numbers too large for the model")
    return numbers


def linear_forms(feature_map: FeatureMap) -> tuple[np.ndarray, np.ndarray, Scaler | None]:
    """(matrix, offset) of W x + phases on raw rows, and the scaler that could not be folded in."""
    matrix = np.ascontiguousarray(feature_map.projection.dense().T, dtype=np.float64)
    offset = np.zeros(feature_map.n_frequencies) if feature_map.phases is None else feature_map.phases
    return _folded(matrix, offset, feature_map.scaler)


def _folded(
    matrix: np.ndarray, offset: np.ndarray, scaler: Scaler | None
) -> tuple[np.ndarray, np.ndarray, Scaler | None]:
    """Forms of scaled rows as forms of raw ones: w.((x - c) f) + b = (w f).x + (b - c.(w f))."""
    if scaler is None:
        return matrix, offset, None
    if not scaler.is_linear:
        # Knots are stored in the order in which the arithmetic reads them, so that no call copies them.
        knots = None if scaler.knots is None else np.asfortranarray(scaler.knots)
        return matrix, offset, replace(scaler, knots=knots)
    center, factor = linear_part(scaler)
    matrix = matrix * factor[:, None]
    return matrix, offset - center @ matrix, None


class _Rule(NamedTuple):
    """A raw column: where its number goes or its texts are, what a missing value becomes, where its flag is."""

    name: str
    kind: str
    places: int | dict[str, int]
    fill: float | None
    flag: int | None
    start: int


class RowEncoder:
    """Encodes one row as `TableEncoding.transform` encodes a table, in microseconds.

    Parameters
    ----------
    encoding : TableEncoding or FittedEncoding

    Examples
    --------
    >>> import pandas as pd
    >>> from dkl.data.ingest.encoding import learn_encoding
    >>> from dkl.export.predictor import RowEncoder
    >>> encode = RowEncoder(learn_encoding([pd.DataFrame({"age": [31.0, 45.0], "colour": ["red", "blue"]})]))
    >>> encode({"age": 40, "colour": "red"})
    array([40.,  0.,  1.], dtype=float32)
    """

    def __init__(self, encoding: TableEncoding | FittedEncoding) -> None:
        self.encoding = encoding
        self._table = encoding.table if isinstance(encoding, FittedEncoding) else encoding
        self._rules, start = [], 0
        for rule in self._table.rules:
            # the column of each text of a one-hot rule, or its code
            first = 1 if rule.kind == "code" else start
            places = {text: first + place for place, text in enumerate(rule.categories)}
            flag = start + rule.n_values if rule.flags_missing else None
            place = places if rule.categories else start
            self._rules.append(_Rule(rule.name, rule.kind, place, rule.fill, flag, start))
            start += len(rule.output_names)

    def __call__(self, rows: object) -> np.ndarray:
        """The encoded columns of a mapping or Series, (d,), of several or of a frame, (n, d); other rows as they come.

        Raises
        ------
        ValueError, TypeError
            As `TableEncoding.transform`.
        """
        if isinstance(rows, pd.Series):
            rows = rows.to_dict()
        rows = as_pandas_rows(rows)
        if isinstance(rows, list | tuple) and rows and isinstance(rows[0], Mapping | pd.Series):
            rows = self._frame(rows)
        if isinstance(rows, Mapping):
            encoded = self._row(rows)
            # A table says in its error what is wrong with the row, and takes the few values that need more care.
            return dense(self.encoding.transform(pd.DataFrame([dict(rows)])))[0] if encoded is None else encoded
        return dense(self.encoding.transform(rows)) if is_frame(rows) else np.asarray(rows)

    def _frame(self, rows: Sequence[Any]) -> pd.DataFrame:
        """Several rows by the names of their columns as a frame.

        Raises
        ------
        ValueError, TypeError
            One lacks a column, or is no row by the names of its columns; the row is named.
        """
        known = [rule.name for rule in self._table.rules]
        plain = [row.to_dict() if isinstance(row, pd.Series) else row for row in rows]
        for place, row in enumerate(plain):
            if not isinstance(row, Mapping):
                raise TypeError(
                    f"row {place} is {shown_value(row)}; expected a mapping of column names to values, as row 0 is"
                )
            if absent := [name for name in known if name not in row]:
                raise ValueError(
                    f"row {place} lacks the columns {spoken_names(absent)}; give them, or None where missing"
                )
        return pd.DataFrame([dict(row) for row in plain])

    def _row(self, row: Mapping[str, Any]) -> np.ndarray | None:
        """The encoded row, or None where it is not plain: the table knows what to do with it, or what to say."""
        out, is_strict = np.zeros(self._table.n_columns, self._table.dtype), self._table.unknown == "error"
        # Further or missing columns are for the table, which names them in its error.
        if len(row) != len(self._rules):
            return None
        for rule in self._rules:
            if rule.name not in row or not _is_set(out, rule, row[rule.name], is_strict):
                return None
        if isinstance(self.encoding, FittedEncoding):
            return self.encoding.places.with_numbers(out[None], self.encoding.tables, None)[0]
        return out


def _is_set(out: np.ndarray, rule: _Rule, value: object, is_strict: bool) -> bool:
    """Write the columns of one value; False where it is not plain."""
    if rule.kind in DATE_KINDS or rule.kind == "text":
        return False
    # A missing value is None or NaN, the only number that differs from itself.
    if value is None or (isinstance(value, _NUMBERS) and value != value):
        if rule.flag is not None:
            out[rule.flag] = 1.0
        if isinstance(rule.places, int):
            out[rule.places] = rule.fill or 0.0
        return rule.fill is not None
    if isinstance(rule.places, int):
        # Numbers beyond float32, and whole ones that a double cannot hold exactly, are refused by the table.
        if not isinstance(value, _NUMBERS) or not -_LARGEST <= value <= _LARGEST:
            return False
        is_inexact = isinstance(value, _WHOLE) and not -EXACT <= value <= EXACT
        if is_inexact or (rule.kind == "boolean" and value not in (0, 1)):
            return False
        out[rule.places] = value
        return True
    if not isinstance(value, str) or (is_strict and value not in rule.places):
        return False
    if value in rule.places:
        place = rule.places[value]
        if rule.kind == "code":
            out[rule.start] = place
        else:
            out[place] = 1.0
    return True

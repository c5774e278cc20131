"""A fitted model as a Pipeline of scikit-learn's own objects, which needs no dkl where it is used.

The cosines of a feature map are an `RBFSampler` with the learned frequencies; a sine is a cosine a quarter turn later.
Kernels at landmarks are a `Nystroem`, or the `Matern` of Gaussian processes and a linear map; products of steps are
binarisers, clipped scalers and sums of these.
"""

from __future__ import annotations

import datetime
import re
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.feature_selection import VarianceThreshold
from sklearn.gaussian_process import kernels
from sklearn.impute import SimpleImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import GammaRegressor, LinearRegression, LogisticRegression, PoissonRegressor, SGDClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted

from dkl.data.columns.free_text import BUCKETS, TextDirections, hashing
from dkl.data.columns.numbers import NumberForm
from dkl.data.ingest.column_rules import ColumnRule
from dkl.data.ingest.encoding import TableEncoding, takes_columns_as_they_are
from dkl.encodings.fitted import FittedEncoding
from dkl.errors import Problems
from dkl.explain.model import model_of
from dkl.export.predictor import Forms, ScoringModel, linear_forms
from dkl.features.activations import Activation, function_of
from dkl.features.families import Coordinates, Gaussian, Laplacian, Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.landmark_projection import Similarities
from dkl.features.nystrom_projection import NystromProjection
from dkl.features.scaling import Scaler
from dkl.features.step_projection import HINGE, STEP, Factor, StepProjection
from dkl.kernels.landmark_tiles import on_waves, wave_map
from dkl.kernels.scale import linear_part, normal_scores, quantile_knots
from dkl.linear.answers import Scorer

# What text is cleaned of before it is read as a number: blanks and signs in their variants.
_PLAIN = (("[\u00a0\u2007\u2009\u202f]", " "), ("[\u2018\u2019´`]", "'"), ("[\u2212\u2013]", "-"))
_SECONDS = 86_400.0


# The projections whose features transformers of scikit-learn compute, beside functions of one linear form.
_COMPUTED = ("landmarks", "steps", "nystrom")


def to_sklearn(model: ScoringModel) -> Pipeline:
    """The fitted model as a Pipeline; see `dkl.methods.saving.SavingMixin.to_sklearn`."""
    check_is_fitted(model, getattr(model, "_fitted_by", None))
    feature_map = model.feature_map_
    for part, _ in feature_map.split(np.ones(feature_map.n_features)):
        lacking = None
        if part.scaler is not None and part.scaler.kind == "counts" and part.scaler.passthrough.any():
            lacking = "scaling='counts' beside columns that are not counts"
        if not _is_computed(part):
            lacking = f"{part.activation} features"
        if lacking:
            raise TypeError(
                f"scikit-learn has no transformer that computes {lacking}; model.to_onnx(path) writes every model, and "
                "model.predictor() answers rows in this process"
            )
    encoding = getattr(model, "encoding_", None)
    steps = _machine(model) if hasattr(model, "_fitted_by") else _transformers(feature_map)
    if isinstance(encoding, FittedEncoding) or (encoding is not None and not takes_columns_as_they_are(encoding)):
        return Pipeline([*_columns(encoding), *steps])
    if hasattr(model, "feature_names_in_"):
        if isinstance(steps[0][1], FeatureUnion | ColumnTransformer) or steps[0][0] == "rows":
            # those side by side would each say that they know no names
            steps.insert(0, ("numbers", FunctionTransformer(np.asarray, feature_names_out="one-to-one")))
        # without the columns that the fit left out
        first, names = steps[0][1], model.feature_names_in_ if encoding is None else encoding.column_names
        first.feature_names_in_, first.n_features_in_ = names, len(names)
    if encoding is not None and encoding.ignored:
        # frames may have the columns that the fit left out; arrays have none of them, nor names
        chosen = FunctionTransformer(pd.DataFrame, kw_args={"columns": encoding.column_names})
        return Pipeline([("columns", chosen), *steps])
    return Pipeline(steps)


def _is_computed(feature_map: FeatureMap) -> bool:
    """Whether transformers of scikit-learn compute these features."""
    function = feature_map.function
    if function is None:
        return feature_map.activation in _COMPUTED
    return function.is_wave or function.numpy_functions is not None


def _machine(model: ScoringModel) -> list[tuple[str, Any]]:
    """The steps of a machine: waves whose scaling is part of their frequencies, and the linear model on them."""
    steps, coef, intercept = _features_of(model_of(model))
    return [*steps, ("linear", _linear_model(model, coef.astype(np.float64), intercept.astype(np.float64)))]


def _features_of(scorer: Scorer) -> tuple[list[tuple[str, Any]], np.ndarray, np.ndarray]:
    """The steps of a machine to the columns of its linear model, whose coefficients and intercept follow."""
    feature_map, coef, intercept = scorer.feature_map, scorer.coef, scorer.intercept
    if feature_map.activation == "steps":
        products, sizes = step_transformers(feature_map)
        return [*_scaling(feature_map), *products], coef * sizes, intercept
    if feature_map.activation == "nystrom":
        return _kernel_steps(feature_map), coef, intercept
    if feature_map.activation == "combined":
        coef = np.concatenate([own for _, own in feature_map.split(coef)], axis=1)
        return _side_by_side(feature_map), coef, intercept
    forms, first = Forms.of(scorer), _own_scaling(feature_map)
    if forms.activation == "identity":
        return first, forms.matrix.T, forms.intercept + forms.offset
    matrix, offset, function = forms.matrix, forms.offset, function_of(forms.activation)
    if function is not None and not function.is_wave:
        return [*first, *_function_steps(function, matrix, offset)], forms.coef.T, forms.intercept
    if forms.activation == "cos-sin":
        matrix, offset = _with_sines(matrix, offset)
    sampler = _sampler(matrix, offset)
    # The sampler multiplies its cosines by a factor of its own, which the coefficients take back.
    return [*first, ("waves", sampler)], forms.coef.T / _factor(sampler), forms.intercept


def _function_steps(function: Activation, matrix: np.ndarray, offset: np.ndarray) -> list[tuple[str, Any]]:
    """A function of x matrix + offset: the linear forms, their offsets, and the function's own steps."""
    forms = [
        ("forms", linear_map(matrix)),
        ("offsets", affine_scaler(-offset, np.ones(len(offset)))),
    ]
    functions = [FunctionTransformer(one, feature_names_out="one-to-one") for one in function.numpy_functions or ()]
    return [*forms, *((f"function {place}", one) for place, one in enumerate(functions))]


def _with_sines(matrix: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The angles of cosines and then of sines: sin z = cos(z - pi / 2)."""
    return np.concatenate([matrix, matrix], axis=1), np.concatenate([offset, offset - np.pi / 2])


def _sampler(matrix: np.ndarray, offset: np.ndarray) -> RBFSampler:
    """cos(x matrix + offset), times `_factor`."""
    sampler = RBFSampler(n_components=len(offset))
    sampler.random_weights_, sampler.random_offset_ = matrix, offset
    # These attributes are what `fit` of scikit-learn would have set: the sampler was never fitted to rows.
    sampler.n_features_in_ = len(matrix)
    sampler._n_features_out = len(offset)
    return sampler


def _factor(sampler: RBFSampler) -> float:
    """What an `RBFSampler` of m columns multiplies its cosines by: sqrt(2 / m)."""
    return (2.0 / sampler.n_components) ** 0.5


def _linear_model(model: ScoringModel, coef: np.ndarray, intercept: np.ndarray) -> Any:
    """The linear model of a machine as one of scikit-learn's, with the same predictions and probabilities.

    Raises
    ------
    TypeError
        For several quantiles, which no model of scikit-learn sorts, and several counts, of which it has none.
    """
    classes = getattr(model, "classes_", None)
    has_one_target = classes is None and model._has_one_target()
    linear: Any
    if classes is None and model._link and not has_one_target:
        raise TypeError(
            "scikit-learn has no linear model of several quantiles in order, nor of several counts; "
            "model.to_onnx(path) writes every model, and model.predictor() answers rows in this process"
        )
    if classes is None and model._link == "log":
        # Predictions are means exp(f). Of one row of zeros: coefficients and intercept are set below.
        linear = PoissonRegressor() if model._settings.loss == "poisson" else GammaRegressor()
        linear.fit(np.zeros((1, coef.shape[1])), [1.0])
    elif classes is None:
        linear = LinearRegression()
    elif not hasattr(model, "predict_proba"):
        linear = LinearSVC()
    elif model._multiplier is None:
        # SGDClassifier divides the probabilities of the classes by their sum, as machines with log odds do.
        linear = SGDClassifier(loss="log_loss")
    else:
        # Calibrated scores are multiplied by 1 / temperature and go through a softmax: that is multinomial logistic
        # regression with multiplied coefficients.
        linear = LogisticRegression()
        coef, intercept = coef * model._multiplier, intercept * model._multiplier
    linear.coef_, linear.intercept_ = (coef[0], intercept[0]) if has_one_target else (coef, intercept)
    linear.n_features_in_ = coef.shape[1]
    if classes is not None:
        linear.classes_ = classes
    return linear


def _transformers(feature_map: FeatureMap) -> list[tuple[str, Any]]:
    """The steps of a feature learner: the features themselves, amplitudes included."""
    if feature_map.activation == "combined":
        return [*_side_by_side(feature_map), _amplitudes(feature_map.amplitudes)]
    if feature_map.activation == "nystrom":
        return _kernel_steps(feature_map)
    if feature_map.activation == "steps":
        products, sizes = step_transformers(feature_map)
        return [*_scaling(feature_map), *products, _amplitudes(sizes)]
    if feature_map.activation == "identity":
        scaler = feature_map.scaler
        center = linear_part(scaler)[0] if scaler is not None and scaler.is_linear else None
        matrix, _, _ = linear_forms(feature_map)
        return [*_own_scaling(feature_map), ("columns kept", linear_map(matrix * feature_map.amplitudes, center))]
    has_landmarks = isinstance(feature_map.projection, Similarities)
    waves = wave_map(feature_map) if has_landmarks else feature_map
    matrix, offset, _ = linear_forms(waves)
    if not has_landmarks and feature_map.function is not None and not feature_map.is_fourier:
        steps = _function_steps(feature_map.function, matrix, offset)
        return [*_own_scaling(feature_map), *steps, _amplitudes(feature_map.amplitudes)]
    if waves.activation == "cos-sin":
        matrix, offset = _with_sines(matrix, offset)
    sampler = _sampler(matrix, offset)
    amplitudes = np.tile(waves.amplitudes, waves.columns_a_frequency)
    if has_landmarks:
        # A similarity to a landmark is a weighted sum of waves, so a linear map of the sampler's columns.
        weights = on_waves(feature_map, np.eye(feature_map.n_features)) * amplitudes / _factor(sampler)
        similarities = linear_map(weights.T)
        return [*_own_scaling(feature_map), ("waves", sampler), ("similarities", similarities)]
    return [*_own_scaling(feature_map), ("waves", sampler), _amplitudes(amplitudes, _factor(sampler))]


def _amplitudes(amplitudes: np.ndarray, factor: float = 1.0) -> tuple[str, Any]:
    """The step that multiplies columns by amplitudes over a factor: a division by a scale, infinite for 0."""
    with np.errstate(divide="ignore"):
        return "amplitudes", affine_scaler(None, factor / amplitudes)


def _side_by_side(feature_map: FeatureMap) -> list[tuple[str, Any]]:
    """The columns of the maps of a combination, without its amplitudes; a first step knows the names of columns."""
    parts = feature_map.split(np.ones(feature_map.n_features))
    union = FeatureUnion([(f"features {i}", Pipeline(_transformers(part))) for i, (part, _) in enumerate(parts)])
    return [("rows", FunctionTransformer(feature_names_out="one-to-one")), ("features", union)]


def _scaling(feature_map: FeatureMap) -> list[tuple[str, Any]]:
    """The scaling of features that no frequencies take up; in double precision, as dkl scales rows."""
    if feature_map.scaler is None:
        return []
    if not feature_map.scaler.is_linear:
        return _own_scaling(feature_map)
    center, factor = linear_part(feature_map.scaler)
    widened = FunctionTransformer(np.asarray, kw_args={"dtype": "float64"}, feature_names_out="one-to-one")
    return [("double precision", widened), ("scaling", affine_scaler(center, 1.0 / factor))]


def _own_scaling(feature_map: FeatureMap) -> list[tuple[str, Any]]:
    """The scaling that no frequencies take up: by quantiles, or of counts, of which sparse rows stay sparse."""
    scaler = feature_map.scaler
    if scaler is None or scaler.is_linear:
        return []
    if scaler.kind == "quantile":
        return [("quantiles", _interpolations(scaler))]
    logarithms = FunctionTransformer(np.log1p, accept_sparse=True, feature_names_out="one-to-one")
    return [("logarithms", logarithms), ("unit length", Normalizer())]


def _interpolations(scaler: Scaler) -> ColumnTransformer:
    """The scaling by quantiles: of each column that is scaled an interpolation between its knots."""
    knots = quantile_knots(scaler)
    scores = normal_scores(len(knots))
    columns = [
        (
            f"column {j}",
            "passthrough"
            if passes
            else FunctionTransformer(
                np.interp,
                kw_args=dict(zip(("xp", "fp"), _strictly_increasing(knots[:, j], scores), strict=True)),
                feature_names_out="one-to-one",
            ),
            [j],
        )
        for j, passes in enumerate(scaler.passthrough)
    ]
    # fitted to a row of zeros, since its steps learn nothing
    return ColumnTransformer(columns, verbose_feature_names_out=False).fit(np.zeros((1, scaler.n_columns)))


def _strictly_increasing(knots: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points and values, (m,) each, with which `numpy.interp` scales a column as `scale_dense` does.

    Points must differ. Equal knots become three: one whose value is the mean of their scores, and the next numbers of
    double precision, the lower with the score of the first knot and the upper with that of the last.
    """
    points, first, count = np.unique(knots, return_index=True, return_counts=True)
    last, tied = first + count - 1, count > 1
    below, above = (np.nextafter(points[tied], end) for end in (-np.inf, np.inf))
    all_points = np.concatenate([points, below, above])
    values = np.concatenate([0.5 * (scores[first] + scores[last]), scores[first[tied]], scores[last[tied]]])
    # a knot that is the next number to a tied one stays
    increasing, place = np.unique(all_points, return_index=True)
    return increasing, values[place]


def _kernel_steps(feature_map: FeatureMap) -> list[tuple[str, Any]]:
    """k(x, Z) A as scikit-learn's own Nystroem, or Matern and a linear map, with the landmarks of the features."""
    nystrom, steps = feature_map.projection_as(NystromProjection), _scaling(feature_map)
    if nystrom.metric is not None:
        root = np.diag(nystrom.metric) if nystrom.metric.ndim == 1 else nystrom.metric
        steps.append(("metric", linear_map(root)))
    if isinstance(nystrom.kernel, Matern):
        # pairwise kernels have none, but those of Gaussian processes do
        matern = kernels.Matern(float(nystrom.kernel.sigma), nu=float(nystrom.kernel.nu))
        similarities = FunctionTransformer(matern, kw_args={"Y": nystrom.landmarks})
        whitening = linear_map(nystrom.whitening * feature_map.amplitudes)
        return [*steps, ("similarities", similarities), ("whitening", whitening)]
    name, parameters = _pairwise_kernel(feature_map)
    kernel = Nystroem(kernel=name, n_components=len(nystrom.landmarks), **parameters)
    kernel.components_ = nystrom.landmarks
    kernel.normalization_ = (nystrom.whitening * feature_map.amplitudes).T
    kernel.component_indices_ = np.arange(len(nystrom.landmarks))
    kernel.n_features_in_, kernel._n_features_out = nystrom.landmarks.shape[1], feature_map.n_features
    return [*steps, ("kernel", kernel)]


def _pairwise_kernel(feature_map: FeatureMap) -> tuple[str, dict[str, float]]:
    """The name and parameters of the same kernel among `sklearn.metrics.pairwise.pairwise_kernels`.

    Raises
    ------
    TypeError
        If scikit-learn has none.
    """
    kernel = feature_map.projection_as(NystromProjection).kernel
    if isinstance(kernel, Gaussian):
        return "rbf", {"gamma": 0.5 / float(kernel.sigma) ** 2}
    if isinstance(kernel, Laplacian):
        return "laplacian", {"gamma": 1.0 / float(kernel.sigma)}
    if isinstance(kernel, Coordinates):
        return "linear", {}
    raise TypeError(
        f"scikit-learn has no pairwise kernel that computes 'nystrom' features of {kernel!r}; fit NystromFeatures with "
        "a Gaussian, Laplacian, Matern or Coordinates kernel, or use model.predictor() in this process"
    )


def _columns(encoding: TableEncoding | FittedEncoding) -> list[tuple[str, Any]]:
    """The encoding of raw columns as steps, fitted on a table made up of what each rule knows.

    Raises
    ------
    TypeError
        For columns that scikit-learn's transformers would encode otherwise, or have nothing for.
    """
    table = encoding.table if isinstance(encoding, FittedEncoding) else encoding
    _check_columns(table)
    fitted = encoding if isinstance(encoding, FittedEncoding) else None
    transformers: list[tuple[str, Any, Any]] = []
    for place, rule in enumerate(table.rules):
        if is_raw(rule):
            transformers.append((f"column {place}", raw_steps(rule), rule.name))
        elif rule.kind != "code":
            transformer = _column_transformer(rule, strict=table.unknown == "error")
            transformers.append((f"column {place}", transformer, [rule.name]))
        # numbers of categories stand behind those of the column that they belong to, or begin with
        for key, names in enumerate(() if fitted is None else fitted.tabled):
            if fitted is not None and names[0] == rule.name:
                transformers.append((f"categories {key}", _target_encoder(names, fitted), list(names)))
    # Few rows fit every transformer: a category that is known, and a missing number where missing ones have a flag,
    # since an imputer adds flags only for columns in which it saw one; an encoder of targets wants three classes twice.
    rows: dict[str, list[Any]] = {rule.name: 3 * _two_values(rule) for rule in table.rules}
    # the steps that follow take what rows of the fit were: dense ones, or sparse ones
    threshold = 1.0 if table.is_sparse else 0.0
    columns = ColumnTransformer(transformers, sparse_threshold=threshold).fit(pd.DataFrame(rows), [0, 0, 1, 1, 2, 2])
    of_texts = {each.name: each for each in table.directions}
    for place, rule in enumerate(table.rules):
        if rule.kind == "text":
            complete_text(columns.named_transformers_[f"column {place}"], of_texts[rule.name])
    if fitted is None:
        return [("columns", columns)]
    for key, numbers in enumerate(fitted.tables):
        # Several numbers of a value are what the encoder has for several classes; unknown values get those of code 0.
        encoder = columns.named_transformers_[f"categories {key}"][-1]
        encoder.classes_, encoder.target_mean_ = np.arange(numbers.shape[1]), numbers[0]
        encoder.encodings_ = list(numbers[1:].T)
    if not fitted.centred:
        return [("columns", columns)]
    # a number less its mean: the mean was looked up, the number is another column
    centring, places = np.eye(fitted.n_columns), fitted.column_names
    for by, number in fitted.centred:
        made_of = places.index(f"{number} less its mean by {by}")
        centring[made_of, made_of], centring[places.index(number), made_of] = -1.0, 1.0
    return [("columns", columns), ("centring", linear_map(centring))]


def _check_columns(encoding: TableEncoding) -> None:
    """Raise TypeError that lists all columns that scikit-learn's transformers would encode otherwise, or not at all."""
    problems = Problems()
    for rule in encoding.rules:
        with problems.collected():
            if rule.kind in ("category", "code"):
                _check_categories(rule)
    problems.raise_all()


def _two_values(rule: ColumnRule) -> list[Any]:
    """Two values of a raw column that its transformers can be fitted to, one of them missing where some were."""
    if rule.kind == "text":
        return ["", ""]
    if rule.categories:
        return [rule.categories[0]] * 2
    if rule.kind == "date":
        return [pd.Timestamp(0, tz=rule.zone or None)] * 2
    if rule.kind == "time":
        return [datetime.time(0)] * 2
    if rule.kind == "duration":
        return [pd.Timedelta(0)] * 2
    return [0.0, np.nan if rule.flags_missing else 0.0]


def _column_transformer(rule: ColumnRule, *, strict: bool) -> Any:
    """The transformer of scikit-learn for a raw column: an encoder of categories, an imputer, or "passthrough"."""
    if rule.kind == "category":
        # A missing text that is filled has zeros in all columns, as an unknown one has.
        unknown = "error" if strict and rule.fill is None else "ignore"
        one_hot = OneHotEncoder(categories=[np.array(rule.categories, dtype=object)], handle_unknown=unknown)
        if not rule.flags_missing:
            return one_hot
        # None and NaN alike; NumPy has what frames of every library hold as objects
        texts = FunctionTransformer(np.asarray, kw_args={"dtype": "object"})
        flag = Pipeline([("texts", texts), ("missing", FunctionTransformer(pd.isna))])
        return FeatureUnion([("values", one_hot), ("flag", flag)])
    # a boolean that is missing for the first time is an error there: imputers take none of them
    fill = rule.filling if rule.kind == "number" else rule.fill
    if fill is None:
        return "passthrough"
    imputer = SimpleImputer(strategy="constant", fill_value=fill, add_indicator=rule.flags_missing)
    if rule.kind != "number":
        return imputer
    # imputers fill whole numbers by whole numbers alone
    double = FunctionTransformer(np.asarray, kw_args={"dtype": "float64"}, feature_names_out="one-to-one")
    return Pipeline([("numbers", double), ("filled", imputer)])


def _target_encoder(names: tuple[str, ...], encoding: FittedEncoding) -> Pipeline:
    """Raw columns to the place of what they hold together among all that their values may be, to its numbers.

    The last step, whose numbers are to be set, is scikit-learn's encoder of target means.
    """
    rules, numbers = {rule.name: rule for rule in encoding.table.rules}, dict(encoding.numbers)
    before: list[list[tuple[str, Any]]] = []
    values: list[np.ndarray] = []
    for name in names:
        rule = rules[name]
        if name not in numbers:
            if rule.kind == "code" and encoding.unknown == "error":
                raise TypeError(f"column {name!r} has target means, and scikit-learn's encoder takes unknown values")
            before.append([])
            values.append(np.array(rule.categories, dtype=object))
            continue
        # whole numbers are compared in the precision of encoded rows, once missing ones are filled in
        steps: list[tuple[str, Any]] = [
            ("numbers", FunctionTransformer(np.asarray, kw_args={"dtype": encoding.dtype.name}))
        ]
        before.append([*steps, *_filled(rule.filling)])
        values.append(np.array(numbers[name], encoding.dtype))
    if len(names) == 1:
        return Pipeline([*before[0], ("target means", _numbers_of(values[0]))])
    # The place of a pair (a, b) is a B + b, and so on; with a value that is unknown in it, it is below 0.
    sizes = [len(each) for each in values]
    strides = np.cumprod([1, *sizes[:0:-1]])[::-1].astype(np.float64)
    n_cells = int(np.prod(sizes))
    places = []
    for name, steps, each in zip(names, before, values, strict=True):
        encoder = OrdinalEncoder(categories=[each], handle_unknown="use_encoded_value", unknown_value=-n_cells)
        places.append((name, Pipeline([*steps, ("places", encoder)]), [name]))
    cells = FunctionTransformer(np.dot, kw_args={"b": strides[:, None]})
    numbers_of = _numbers_of(np.arange(n_cells, dtype=np.float64))
    return Pipeline([("places", ColumnTransformer(places)), ("cells", cells), ("target means", numbers_of)])


def _numbers_of(values: np.ndarray) -> TargetEncoder:
    """Several numbers of each value of a column."""
    return TargetEncoder(categories=[values], target_type="multiclass", cv=2)


def _check_categories(rule: ColumnRule) -> None:
    """Raise TypeError for categories that OneHotEncoder would treat otherwise than the encoding, without a word."""

    def is_numeric(text: str) -> bool:
        try:
            float(text)
        except ValueError:
            return text in ("true", "false")
        return True

    if any(is_numeric(text) for text in rule.categories):
        raise TypeError(
            f"the categories of column {rule.name!r} look like numbers or booleans, which scikit-learn's encoders find "
            "by their type; turn them into other texts before fit, or use model.to_onnx(path)"
        )


def is_raw(rule: ColumnRule) -> bool:
    """Whether a column takes steps of this module: others are numbers, booleans and categories as they are."""
    return rule.kind in ("date", "time", "duration", "text") or (
        rule.kind == "number" and bool(rule.form or rule.unread)
    )


def raw_steps(rule: ColumnRule) -> FeatureUnion | Pipeline:
    """Steps of scikit-learn from one column of a table to its encoded columns; `complete_text` ends those of texts."""
    if rule.kind == "text":
        # words and pairs of words; `complete_text` adds the columns that are computed from them
        parts = [(f"{n} words", Pipeline([("hashes", clone(hashing(n))), *_TO_COME])) for n in (1, 2)]
        there = ("there", FunctionTransformer(methodcaller("fillna", "")))
        values: Any = Pipeline([there, ("words", FeatureUnion(parts)), *_TO_COME])
    elif rule.kind == "number":
        values = Pipeline([*_read_number(rule), *_column(), *_filled(rule.filling)])
    else:
        values = _time_steps(rule)
    if not rule.flags_missing:
        return values
    flag = Pipeline([*_missing_of(rule), ("columns", _call(pd.Series.to_frame))])
    return FeatureUnion([("values", values), ("flag", flag)])


def _call(function: Any, **arguments: Any) -> FunctionTransformer:
    return FunctionTransformer(function, kw_args=arguments or None)


def _missing_of(rule: ColumnRule) -> list[tuple[str, Any]]:
    """Steps that mark the values that are missing, or cannot be read as the kind of the column."""
    before: list[tuple[str, Any]] = []
    if rule.kind == "number":
        before = _read_number(rule)
    elif rule.kind in ("date", "time", "duration"):
        before = _read_time(rule)
    return [*before, ("missing", _call(pd.isna))]


def _filled(fill: float | None) -> list[tuple[str, Any]]:
    """An imputer for missing numbers; none where they are errors."""
    return [] if fill is None else [("filled", SimpleImputer(strategy="constant", fill_value=fill))]


def _read_number(rule: ColumnRule) -> list[tuple[str, Any]]:
    """Texts, or numbers, as numbers; NaN where they are none."""
    form = NumberForm.of(rule.form)
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
    steps.steps[-1] = ("sum", linear_map(both))


def step_transformers(feature_map: FeatureMap) -> tuple[list[tuple[str, Any]], np.ndarray]:
    """Transformers of scaled rows whose columns, times the sizes, are the features.

    A hinge between its threshold t and the value `high` where it ends is the size high - t times a ramp r in [0, 1]. A
    product of k steps and a ramp is then clip(step_1 + ... + step_k + r - k, 0, 1): r where all steps are 1, and 0
    where one of them is 0. So is a product of k steps alone clip(step_1 + ... + step_k - (k - 1), 0, 1).

    Returns
    -------
    transformers : list of (str, transformer)
        The factors, their sums, and the products in [0, 1].
    sizes : ndarray of shape (m,)

    Raises
    ------
    TypeError
        For maps that hold no steps, or products of several hinges.
    """
    steps = feature_map.projection_as(StepProjection)
    if (np.count_nonzero((steps.kinds == HINGE) & (steps.columns >= 0), axis=1) > 1).any():
        raise TypeError(
            "scikit-learn has no transformer that computes 'steps' features with a product of two hinges; "
            "model.to_onnx(path) writes every model of steps, and model.predictor() answers rows in this process"
        )
    atoms = steps.factors
    # Each distinct factor is one column, steps first.
    factors = sorted({factor for atom in atoms for factor in atom}, key=lambda factor: (factor[2], factor))
    place = {factor: number for number, factor in enumerate(factors)}
    of_steps = [factor for factor in factors if factor[2] == STEP]
    of_hinges = [factor for factor in factors if factor[2] == HINGE]
    parts: list[tuple[str, Any]] = []
    if of_steps:
        thresholds = np.array([t for _, t, _ in of_steps])
        # 1 where a number is above 0
        binarizer = Binarizer()
        binarizer.n_features_in_ = len(of_steps)
        above = [
            ("columns", _chosen(of_steps, feature_map.n_columns)),
            ("less thresholds", affine_scaler(thresholds, np.ones(len(thresholds)))),
            ("above", binarizer),
        ]
        parts.append(("steps", Pipeline(above)))
    if of_hinges:
        start, length = np.array([t for _, t, _ in of_hinges]), _lengths(of_hinges, steps)
        ramps = [("columns", _chosen(of_hinges, feature_map.n_columns)), ("ramps", _clipped(start, length))]
        parts.append(("hinges", Pipeline(ramps)))
    sums = np.zeros((len(factors), len(atoms)))
    for a, atom in enumerate(atoms):
        # A factor that is there twice counts twice here, as it does in the number of factors below.
        for factor in atom:
            sums[place[factor], a] += 1.0
    others = np.array([len(atom) - 1.0 for atom in atoms])
    lengths = np.array([np.prod(_lengths([f for f in atom if f[2] == HINGE], steps)) for atom in atoms])
    transformers = [
        ("factors", FeatureUnion(parts)),
        ("sums", linear_map(sums)),
        ("products", _clipped(others, np.ones(len(atoms)))),
    ]
    return transformers, lengths * feature_map.amplitudes


def _lengths(hinges: list[Factor], steps: StepProjection) -> np.ndarray:
    """high - t of each hinge: the most that it can be."""
    return np.array([steps.high[j] - t for j, t, _ in hinges])


def _chosen(factors: list[Factor], n_columns: int) -> PCA:
    """The column of each factor, in double precision, in which thresholds are."""
    matrix = np.zeros((n_columns, len(factors)))
    matrix[[j for j, _, _ in factors], np.arange(len(factors))] = 1.0
    return linear_map(matrix)


def _clipped(start: np.ndarray, length: np.ndarray) -> MinMaxScaler:
    """clip((x - start) / length, 0, 1)."""
    scaler = MinMaxScaler(clip=True)
    scaler.scale_, scaler.min_ = 1.0 / length, -start / length
    scaler.data_min_, scaler.data_max_, scaler.data_range_ = start, start + length, length
    scaler.n_features_in_ = len(start)
    scaler.n_samples_seen_ = 1
    return scaler


def affine_scaler(mean: np.ndarray | None, scale: np.ndarray) -> StandardScaler:
    """(x - mean) / scale, column by column: a StandardScaler that was never fitted."""
    scaler = StandardScaler(with_mean=mean is not None)
    scaler.mean_, scaler.scale_, scaler.var_, scaler.n_samples_seen_ = mean, scale, scale**2, 1
    scaler.n_features_in_ = len(scale)
    return scaler


def linear_map(matrix: np.ndarray, mean: np.ndarray | None = None) -> PCA:
    """(x - mean) matrix, by the one transformer of scikit-learn that is an affine map: a PCA that was never fitted."""
    linear = PCA(n_components=matrix.shape[1])
    linear.mean_ = np.zeros(len(matrix)) if mean is None else mean
    linear.components_, linear.n_components_ = matrix.T, matrix.shape[1]
    linear.n_features_in_ = linear.n_samples_ = len(matrix)
    # It is not used without whitening, and yet asked for by the check that a PCA is fitted.
    linear.explained_variance_ = np.ones(matrix.shape[1])
    return linear

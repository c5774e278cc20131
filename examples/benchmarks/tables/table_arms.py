"""The arms of the suite: what is fitted to each table, by name, with the preparation of columns that each needs.

An arm of dkl takes raw rows, and is one line of `DKL`. The others get what is usual for them: trees get categories,
linear models and kernels one-hot columns beside imputed numbers in standard deviations; dates become days.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import TransformedTargetRegressor, make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, TimeSeriesSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, SVR

MOST_CATEGORIES = 5_000
HISTOGRAM_CATEGORIES = 250
OTHER = "(other)"
FOLDS = 3
RIDGE_PENALTIES = (0.1, 1.0, 10.0, 100.0)
LOGISTIC_COSTS = (0.01, 0.1, 1.0, 10.0)
SVM_COSTS = (1.0, 10.0, 100.0)
SVM_ROWS = 10_000
HELD_OUT = 0.2
TREES, PATIENCE = 2_000, 50


@dataclass(frozen=True)
class Fit:
    """What an arm is told of a fit beside the rows.

    Parameters
    ----------
    has_numbers : bool
        Whether targets are numbers, not labels.
    by_time : bool
        Whether rows are in the order of their times, the test rows after them.
    seed : int
    budget : float
        Processor seconds, for arms that are given some.
    is_warming : bool
        Whether all that counts is that everything is loaded: an arm that takes long on any rows does less.
    """

    has_numbers: bool
    by_time: bool = False
    seed: int = 0
    budget: float = 0.0
    is_warming: bool = False


@dataclass(frozen=True)
class Arm:
    """A way to predict.

    Parameters
    ----------
    make : callable
        From a `Fit` to an estimator that takes data frames.
    says : str
        What it is, for the page.
    package : str
        What has to be installed.
    module : str
        As Python imports it.
    most_rows : int or None
        Training rows above which it is left out.
    has_budget : bool
        Whether it is tuned for as long as `dkl` took.
    only_labels : bool
        Whether it takes no numbers for targets.
    """

    make: Callable[[Fit], Any]
    says: str
    package: str = "scikit-learn"
    module: str = "sklearn"
    most_rows: int | None = None
    has_budget: bool = False
    only_labels: bool = False


class Columns(TransformerMixin, BaseEstimator):
    """Raw columns as numbers and pandas' categories, named c0, c1, ... in their order; dates become days since 1970.

    Parameters
    ----------
    most_categories : int
        Of a text column with more values the most frequent ones are kept; all others are one category.
    """

    def __init__(self, most_categories: int = MOST_CATEGORIES) -> None:
        self.most_categories = most_categories

    def fit(self, X: pd.DataFrame, y: Any = None) -> Columns:
        self.categories_: dict[str, list[str]] = {}
        for name in X:
            if not _is_number(X[name]):
                # value_counts orders ties by first appearance
                values = list(X[name].dropna().map(str).value_counts().index)
                several = len(values) > self.most_categories
                known = sorted(values[: self.most_categories - 1] if several else values)
                self.categories_[name] = [*known, OTHER] if several else known
        return self

    def transform(self, X: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({f"c{place}": self._column(name, X[name]) for place, name in enumerate(X)}, index=X.index)

    def _column(self, name: str, column: pd.Series) -> Any:
        if name in self.categories_:
            texts, known = column.map(str, na_action="ignore"), self.categories_[name]
            if OTHER in known:
                texts = texts.where(texts.isin(known) | texts.isna(), OTHER)
            return pd.Categorical(texts, categories=known)
        if pd.api.types.is_datetime64_any_dtype(column):
            return (column - pd.Timestamp(0, tz=column.dt.tz)) / pd.Timedelta(days=1)
        return column.astype(np.float64)


def _is_number(column: pd.Series) -> bool:
    kinds = pd.api.types
    return kinds.is_numeric_dtype(column) or kinds.is_bool_dtype(column) or kinds.is_datetime64_any_dtype(column)


def encoded(model: Any) -> Any:
    """The model on one-hot columns beside imputed numbers, with what was missing, in standard deviations."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), make_column_selector(dtype_include="category")),
        (numbers, make_column_selector(dtype_include="number")),
    )
    return make_pipeline(Columns(), columns, model)


def searched(model: Any, grid: dict[str, Any], fit: Fit) -> Any:
    """The model with its penalty chosen by folds, of later rows where rows have a time."""
    if fit.by_time:
        folds: Any = TimeSeriesSplit(FOLDS)
    else:
        folds = (KFold if fit.has_numbers else StratifiedKFold)(FOLDS, shuffle=True, random_state=fit.seed)
    return GridSearchCV(model, grid, cv=folds, error_score="raise")


def linear(fit: Fit) -> Any:
    if fit.has_numbers:
        return encoded(searched(Ridge(), {"alpha": RIDGE_PENALTIES}, fit))
    return encoded(searched(LogisticRegression(max_iter=1_000), {"C": LOGISTIC_COSTS}, fit))


def rbf_svm(fit: Fit) -> Any:
    if not fit.has_numbers:
        return encoded(searched(SVC(cache_size=500), {"C": SVM_COSTS}, fit))
    search = searched(SVR(cache_size=500), {"C": SVM_COSTS}, fit)
    return TransformedTargetRegressor(encoded(search), transformer=StandardScaler())


def histogram_boosting(fit: Fit) -> Any:
    kind = HistGradientBoostingRegressor if fit.has_numbers else HistGradientBoostingClassifier
    model = kind(categorical_features="from_dtype", random_state=fit.seed)
    return make_pipeline(Columns(HISTOGRAM_CATEGORIES), model)


def explainable_boosting(fit: Fit) -> Any:
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    kind = ExplainableBoostingRegressor if fit.has_numbers else ExplainableBoostingClassifier
    less = {"outer_bags": 2, "max_rounds": 20} if fit.is_warming else {}
    return make_pipeline(Columns(), kind(n_jobs=1, random_state=fit.seed, **less))


def trees(fit: Fit, **settings: Any) -> Any:
    """LightGBM, without what it takes its columns from."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    kind = LGBMRegressor if fit.has_numbers else LGBMClassifier
    return kind(n_jobs=1, random_state=fit.seed, verbose=-1, **settings)


def lightgbm(**settings: Any) -> Callable[[Fit], Any]:
    return lambda fit: make_pipeline(Columns(), trees(fit, **settings))


class CatBoost(BaseEstimator):
    """CatBoost's defaults on one thread; texts are its own categories, of which a gap is one.

    Parameters
    ----------
    told : Fit
    """

    def __init__(self, told: Fit) -> None:
        self.told = told

    def fit(self, X: pd.DataFrame, y: np.ndarray) -> CatBoost:
        from catboost import CatBoostClassifier, CatBoostRegressor

        kind = CatBoostRegressor if self.told.has_numbers else CatBoostClassifier
        # its trees are as many however few the rows
        less = {"iterations": 10} if self.told.is_warming else {}
        model = kind(thread_count=1, random_seed=self.told.seed, verbose=False, allow_writing_files=False, **less)
        self.model_ = model.fit(self._texts(X), y, cat_features=list(X.select_dtypes("category")))
        return self

    @staticmethod
    def _texts(X: pd.DataFrame) -> pd.DataFrame:
        """The columns with categories as texts, since it takes no missing category."""
        return X.assign(**{name: X[name].astype(object).fillna("") for name in X.select_dtypes("category")})

    @property
    def classes_(self) -> np.ndarray:
        return self.model_.classes_

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        # of several classes it gives a column
        return np.ravel(self.model_.predict(self._texts(X)))

    def predict_proba(self, X: pd.DataFrame) -> np.ndarray:
        return self.model_.predict_proba(self._texts(X))


class TunedTrees(BaseEstimator):
    """LightGBM with settings drawn at random for as long as processor seconds last, then fitted to all rows.

    Every trial is judged after each tree by the loss of a fifth of the rows, held out (the last ones where rows have a
    time). The two fixed settings of the suite are tried first, the defaults in any case. Trials end early enough that
    the last fit, to all rows with the trees that were best, is within the budget too.

    Parameters
    ----------
    told : Fit
        With the budget.
    """

    def __init__(self, told: Fit) -> None:
        self.told = told

    def fit(self, X: pd.DataFrame, y: np.ndarray) -> TunedTrees:
        self.started_ = time.process_time()
        n_held, generator = int(HELD_OUT * len(y)), np.random.default_rng(self.told.seed)
        order = np.arange(len(y)) if self.told.by_time else generator.permutation(len(y))
        kept, held = order[:-n_held], order[-n_held:]
        if self.told.has_numbers:
            goal, goal_held = y[kept], y[held]
        else:
            # LightGBM judges codes, and none of classes that it was not fitted to
            classes, goal = np.unique(y[kept], return_inverse=True)
            held = held[np.isin(y[held], classes)]
            goal_held = np.searchsorted(classes, y[held])
        best_loss, best, self.refit_cost_, self.n_trials_ = np.inf, {"n_estimators": 100}, 0.0, 0
        for settings in self._settings(generator):
            begun = time.process_time()
            model = trees(self.told, **settings)
            callbacks = [_patience()] if self.n_trials_ == 0 else [_patience(), self._deadline(begun)]
            model.fit(X.iloc[kept], goal, eval_X=X.iloc[held], eval_y=goal_held, callbacks=callbacks)
            cost = (time.process_time() - begun) * len(y) / len(kept)
            (losses,) = next(iter(model.evals_result_.values())).values()
            n_trees = int(np.argmin(losses)) + 1
            if losses[n_trees - 1] < best_loss:
                best_loss, best = losses[n_trees - 1], {**settings, "n_estimators": n_trees}
                self.refit_cost_ = cost * n_trees / len(losses)
            self.n_trials_ += 1
            if self._used() + 2 * self.refit_cost_ > self.told.budget:
                break
        self.settings_ = best
        self.model_ = trees(self.told, **best).fit(X, y)
        return self

    def _used(self) -> float:
        return time.process_time() - self.started_

    def _settings(self, generator: np.random.Generator) -> Iterator[dict[str, Any]]:
        yield {"n_estimators": 100}
        yield {"n_estimators": 500, "learning_rate": 0.05}
        while True:
            yield {
                "n_estimators": TREES,
                "learning_rate": _log_uniform(generator, 0.01, 0.3),
                "num_leaves": round(_log_uniform(generator, 4, 256)),
                "min_child_samples": round(_log_uniform(generator, 2, 100)),
                "colsample_bytree": generator.uniform(0.3, 1.0),
                "subsample": generator.uniform(0.5, 1.0),
                "subsample_freq": 1,
                "reg_lambda": _log_uniform(generator, 1e-3, 100.0),
                "cat_smooth": _log_uniform(generator, 1.0, 100.0),
            }

    def _deadline(self, begun: float) -> Callable[[Any], None]:
        """Ends a trial when what it took so far, and would take once more on all rows, or the best, leaves nothing."""
        from lightgbm.callback import EarlyStopException

        def check(trial: Any) -> None:
            refit = max(self.refit_cost_, (time.process_time() - begun) / (1 - HELD_OUT))
            if self._used() + refit > self.told.budget:
                raise EarlyStopException(trial.iteration, trial.evaluation_result_list)

        check.order = 40  # type: ignore[attr-defined]  # after the loss of this tree was recorded
        return check

    @property
    def classes_(self) -> np.ndarray:
        return self.model_.classes_

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        return self.model_.predict(X)

    def predict_proba(self, X: pd.DataFrame) -> np.ndarray:
        return self.model_.predict_proba(X)


def _log_uniform(generator: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(generator.uniform(np.log(low), np.log(high))))


def _patience() -> Callable[[Any], None]:
    from lightgbm import early_stopping

    return early_stopping(PATIENCE, verbose=False)


def tuned_features(fit: Fit) -> Any:
    """The machines that learn the density of their frequencies."""
    import dkl

    return (dkl.TunedRegressor if fit.has_numbers else dkl.TunedClassifier)(random_state=fit.seed)


def machine(
    learner: str | None = None,
    *,
    classifier: dict[str, Any] | None = None,
    regressor: dict[str, Any] | None = None,
    **settings: Any,
) -> Callable[[Fit], Any]:
    """dkl's machine for labels or numbers on a learner of this name with these settings; without a name as it comes.

    `classifier` and `regressor` are settings of the machines.
    """

    def make(fit: Fit) -> Any:
        import dkl

        kind = dkl.KernelRegressor if fit.has_numbers else dkl.KernelClassifier
        own = (regressor if fit.has_numbers else classifier) or {}
        features = {"features": getattr(dkl, learner)(random_state=fit.seed, **settings)} if learner else {}
        return kind(**features, random_state=fit.seed, progress=False, **own)

    return make


class BagsOfSteps(BaseEstimator):
    """dkl's working model on steps: as many searches as there are bags, whose coefficients are averaged.

    Parameters
    ----------
    features : StepFeatures
    has_numbers : bool
        Whether targets are numbers.
    """

    def __init__(self, features: Any, has_numbers: bool = False) -> None:
        self.features = features
        self.has_numbers = has_numbers

    def fit(self, X: pd.DataFrame, y: Any) -> BagsOfSteps:
        import dkl

        features = clone(self.features)
        # a learner by itself takes whole numbers for labels, a regressor does not; the regressor's own fit is not used
        if self.has_numbers:
            features = dkl.KernelRegressor(features, solver="newton", alpha=1e-3, progress=False).fit(X, y).features_
        else:
            features.fit(X, y)
        self.machine_ = features.machine_
        return self

    def __getattr__(self, name: str) -> Any:
        # its methods and classes are those of the model
        if name.startswith("__") or name == "machine_":
            raise AttributeError(name)
        return getattr(self.machine_, name)


def glass_box(fit: Fit) -> Any:
    """Shapes and pairs by steps."""
    import dkl

    steps = dkl.StepFeatures(depth=2, bins=128, n_features=400, bags=16, random_state=fit.seed)
    return BagsOfSteps(steps, fit.has_numbers)


def additive_kernel(fit: Fit) -> Any:
    """Shapes and pairs by a kernel of at most two columns at landmarks."""
    import dkl

    kernel = dkl.SparseFrequencies(dkl.Laplacian(4.0 if fit.has_numbers else 0.5), most_columns=2)
    return machine("NystromFeatures", kernel=kernel, n_features=4_000, scaling="quantile", **NEWTON)(fit)


NEWTON: dict[str, Any] = {
    "classifier": {"loss": "squared_hinge", "solver": "newton", "alpha": "auto"},
    "regressor": {"solver": "newton", "alpha": "auto"},
}
LEARNERS = {
    "random": "RandomFeatures",
    "aligned": "AlignedFeatures",
    "posterior": "PosteriorFeatures",
    "landmark": "LandmarkFeatures",
    "peaks": "PeakFeatures",
    "margin": "MarginFeatures",
    "leverage": "LeverageFeatures",
    "joint": "JointFeatures",
    "steps": "StepFeatures",
    "nystrom": "NystromFeatures",
}
DKL = {
    "dkl": Arm(machine(), "KernelClassifier() and KernelRegressor(), no settings, raw frames", "dkl", "dkl"),
    **{
        f"dkl-{effort}": Arm(
            machine(classifier={"effort": effort}, regressor={"effort": effort}),
            f'KernelClassifier(effort="{effort}") and KernelRegressor(effort="{effort}"), raw frames',
            "dkl",
            "dkl",
        )
        for effort in ("fast", "best")
    },
    **{
        f"dkl-{name}": Arm(
            machine(learner, **NEWTON),
            f"{learner}() with Newton steps and alpha='auto', raw frames",
            "dkl",
            "dkl",
            only_labels=name in ("posterior", "landmark"),
        )
        for name, learner in LEARNERS.items()
    },
    "dkl-tuned": Arm(tuned_features, "TunedClassifier() and TunedRegressor(), raw frames", "dkl", "dkl"),
    "dkl-glass-box": Arm(
        glass_box,
        "StepFeatures(depth=2, bins=128, n_features=400, bags=16).fit(X, y).machine_, the mean of the bags, raw frames",
        "dkl",
        "dkl",
    ),
    "dkl-additive": Arm(
        additive_kernel,
        "NystromFeatures(SparseFrequencies(Laplacian(s), most_columns=2), n_features=4_000, scaling='quantile'), "
        "s = 0.5 for labels and 4 for numbers, with Newton steps and alpha='auto', raw frames",
        "dkl",
        "dkl",
    ),
}
REFERENCE = "lightgbm"
ARMS = {
    REFERENCE: Arm(lightgbm(), "LightGBM's defaults, 100 trees", "lightgbm", "lightgbm"),
    "lightgbm-500": Arm(
        lightgbm(n_estimators=500, learning_rate=0.05), "LightGBM, 500 trees at 0.05", "lightgbm", "lightgbm"
    ),
    "catboost": Arm(
        lambda fit: make_pipeline(Columns(), CatBoost(fit)),
        "CatBoost's defaults, 1,000 trees, its own categories",
        "catboost",
        "catboost",
    ),
    "hist-boosting": Arm(histogram_boosting, "HistGradientBoosting's defaults"),
    "linear": Arm(linear, "ridge, or logistic regression, the penalty by three folds"),
    "rbf-svm": Arm(rbf_svm, "SVC or SVR with an RBF kernel, C by three folds", most_rows=SVM_ROWS),
    "ebm": Arm(
        explainable_boosting, "interpret's explainable boosting machine, its defaults", "interpret", "interpret"
    ),
    **DKL,
    # after the arm of dkl, since it is told how long that took
    "lightgbm-tuned": Arm(
        lambda fit: make_pipeline(Columns(), TunedTrees(fit)),
        "LightGBM, settings drawn at random and judged on held-out rows for the processor seconds that `dkl` took",
        "lightgbm",
        "lightgbm",
        has_budget=True,
    ),
}

"""The estimators of scikit-learn in a comparison: a linear model, an SVM and boosted trees."""

from __future__ import annotations

from sklearn.base import BaseEstimator
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from dkl.data.dataset import Dataset

LINEAR, SVM, TREES = "linear model", "SVM (RBF)", "boosted trees"
OUTSIDE = frozenset({LINEAR, SVM, TREES})
# The most rows for which an SVM is fitted, since its time and memory grow with the square of the rows.
_MOST_ROWS_OF_SVM = 10_000
# The most bytes (1 GiB) of dense rows for which scikit-learn's estimators, which need rows in memory, are fitted.
_MOST_BYTES = 1 << 30
# The penalties (alpha) among which `RidgeCV` chooses.
_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3)


def rivals(dataset: Dataset, *, seed: int = 0) -> dict[str, BaseEstimator]:
    """Unfitted estimators of scikit-learn for these rows, with default parameters, by name.

    Parameters
    ----------
    dataset : Dataset
        With targets.
    seed : int

    Returns
    -------
    dict of str to estimator
        A linear model; an SVM with the RBF kernel for up to 10,000 rows; boosted trees for dense rows. Empty for dense
        rows of more than 1 GiB in memory.
    """
    is_class, is_sparse = dataset.task == "classification", dataset.source.is_sparse
    n_entries = dataset.n_rows * dataset.n_columns
    if not is_sparse and 8 * n_entries > _MOST_BYTES:
        return {}
    # Sparse rows are not centred, so that they stay sparse.
    scaler = StandardScaler(with_mean=not is_sparse)
    linear = LogisticRegression(max_iter=1_000) if is_class else RidgeCV(_PENALTIES)
    found: dict[str, BaseEstimator] = {LINEAR: make_pipeline(scaler, linear)}
    several = (dataset.schema.n_targets or 1) > 1
    if dataset.n_rows <= _MOST_ROWS_OF_SVM and not several:
        found[SVM] = make_pipeline(scaler, SVC(random_state=seed) if is_class else SVR())
    if not is_sparse and not several:
        trees = HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor
        found[TREES] = trees(random_state=seed)
    return found

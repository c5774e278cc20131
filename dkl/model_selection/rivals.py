"""What a comparison has beside the learners of dkl: a linear model, an SVM and boosted trees of scikit-learn."""

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
# An SVM takes time and memory that grow with the square of the rows: above so many it is left out.
_MOST_ROWS_OF_SVM = 10_000
# scikit-learn needs all rows in memory: above so many bytes its estimators are left out.
_MOST_BYTES = 1 << 30
_PENALTIES = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1e3)


def rivals(dataset: Dataset, *, seed: int = 0) -> dict[str, BaseEstimator]:
    """scikit-learn's estimators for rows such as these, as they come, by name; not fitted.

    Parameters
    ----------
    dataset : Dataset
        With targets.
    seed : int

    Returns
    -------
    dict of str to estimator
        A linear model and boosted trees, and an SVM with the RBF kernel for up to 10,000 rows. Boosted trees take no
        sparse rows; none is there for rows of more than 1 GiB in memory.
    """
    is_class, is_sparse = dataset.task == "classification", dataset.source.is_sparse
    n_entries = dataset.n_rows * dataset.n_columns
    if not is_sparse and 8 * n_entries > _MOST_BYTES:
        return {}
    # Sparse rows stay sparse where nothing is subtracted from them.
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

"""The losses of linear models by scikit-learn's names: what early stopping compares."""

from __future__ import annotations

import numpy as np


def row_losses(scores: np.ndarray, y: np.ndarray, *, loss: str, epsilon: float = 0.1) -> np.ndarray:
    """The loss of each row, summed over models.

    Parameters
    ----------
    scores : ndarray of shape (n, K)
        One model (K = 1) for two classes and for one target, else one a class against the rest.
    y : ndarray of shape (n,) or (n, K)
        Class codes for a classification loss, else targets.
    loss : {"hinge", "squared_hinge", "log_loss", "modified_huber", "squared_error", "epsilon_insensitive", "huber"}
    epsilon : float

    Returns
    -------
    ndarray of shape (n,)
    """
    if loss in ("squared_error", "epsilon_insensitive", "huber"):
        return _error_losses(np.abs(y.reshape(scores.shape) - scores), loss, epsilon).sum(axis=1)
    codes = np.ones(1) if scores.shape[1] == 1 else np.arange(scores.shape[1])
    return _margin_losses(np.where(y[:, None] == codes, scores, -scores), loss).sum(axis=1)


def _margin_losses(margin: np.ndarray, loss: str) -> np.ndarray:
    slack = np.maximum(0.0, 1.0 - margin)
    if loss == "hinge":
        return slack
    if loss == "squared_hinge":
        return slack**2
    if loss == "modified_huber":
        return np.where(margin < -1.0, -4.0 * margin, slack**2)
    return np.logaddexp(0.0, -margin)


def _error_losses(error: np.ndarray, loss: str, epsilon: float) -> np.ndarray:
    if loss == "squared_error":
        return 0.5 * error**2
    if loss == "epsilon_insensitive":
        return np.maximum(0.0, error - epsilon)
    return np.where(error <= epsilon, 0.5 * error**2, epsilon * error - 0.5 * epsilon**2)

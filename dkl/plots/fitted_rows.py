"""The rows behind a picture, and the weight that a fitted model gives to each of them."""

from __future__ import annotations

import numpy as np

from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.methods.validation import encoded_rows
from dkl.protocols.arrays import dense_rows
from dkl.protocols.estimators import FittedFeatures, FittedModel
from dkl.solvers.losses import loss_of

# A picture of more rows looks the same, and has to be computed in memory.
MOST_ROWS = 20_000

Fitted = FittedFeatures | FittedModel


def in_memory_rows(model: Fitted, X: object, y: object = None) -> tuple[np.ndarray, np.ndarray]:
    """At most 20,000 rows, dense, and their targets, from whatever `fit` takes.

    Parameters
    ----------
    model : fitted feature learner or Kernel machine
        Its encoding takes raw frames to columns.
    X : array, scipy sparse matrix, pandas frame, Dask collection or Dataset of shape (n, d)
    y : array of shape (n,) or None

    Returns
    -------
    X : ndarray of shape (k, d)
    y : ndarray of shape (k,)
        Labels as they were given, not codes; empty without targets.
    """
    X = encoded_rows(model, X)
    dataset = X if isinstance(X, Dataset) else as_dataset(X, y)
    dataset = dataset.thin(MOST_ROWS, 0) if dataset.n_rows > MOST_ROWS else dataset
    rows = dataset.X.compute()
    targets = np.empty(0) if dataset.y is None else np.asarray(dataset.y.compute())
    return np.asarray(dense_rows(rows)), targets


def working_dual(model: Fitted, X: np.ndarray, y: np.ndarray, *, reweighted: bool = True) -> np.ndarray:
    """The signed weight of each row under a model: what the next feature would be searched for.

    Parameters
    ----------
    model : fitted feature learner or Kernel machine
        A learner's `machine_` is asked where it has one.
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,)
    reweighted : bool
        False: labels or centred targets, whatever the model says.

    Returns
    -------
    ndarray of shape (n, K), float64
        K is 1 for two classes and for numbers. Classes: ``y max(0, 1 - y f)``, half the dual of the squared hinge.
    """
    # A learner of rounds has a model of its own so far, whose errors the next search would look at.
    machine = getattr(model, "machine_", model)
    classes = getattr(machine, "classes_", getattr(model, "classes_", None))
    if classes is None:
        signs = y[:, None] - y.mean()
    else:
        # -1 and +1, one column for two classes (the second is +1), else one a class
        signs = np.where(y[:, None] == np.asarray(classes)[None, 1 if len(classes) == 2 else 0 :], 1.0, -1.0)
    if not reweighted:
        return signs
    if hasattr(machine, "decision_function"):
        decision = np.asarray(machine.decision_function(X)).reshape(signs.shape)
        # Half of the slope: a picture shows the weights of the rows against each other, and their scale says nothing.
        return -0.5 * loss_of("squared_hinge").slope(signs, decision)
    if classes is None and hasattr(machine, "predict"):
        return y[:, None] - np.asarray(machine.predict(X)).reshape(len(y), 1)
    return signs

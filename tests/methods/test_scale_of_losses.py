"""C, alpha and lam mean what scikit-learn's machines mean by them, for every learner and every loss that it has.

Each machine is compared with scikit-learn's on the features that it has learned; half or twice the penalty is far off.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR

import dkl
from dkl.features.families import Coordinates, Gaussian
from dkl.methods.margin import learner as corrective
from dkl.methods.margin.driver import RoundSchedule
from dkl.solvers.losses import loss_of

OPTIONS: dict[str, Any] = {"random_state": 0, "progress": False}
WAVES = Gaussian(2.0)
# liblinear penalises the intercept unless it is made of a large column
FREE: dict[str, Any] = {"intercept_scaling": 1e3, "tol": 1e-10, "max_iter": 200_000}


def rows(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n)


def classes(n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    X, t = rows()
    return X, (t > 0).astype(int) if n_classes == 2 else np.digitize(t, [-0.5, 0.5])


def standardised(t: np.ndarray) -> np.ndarray:
    return (t - t.mean()) / t.std()


def one_against_the_rest(machine: Callable[[], Any], phi: np.ndarray, y: np.ndarray, **weights: Any) -> np.ndarray:
    """Decision values (n, K) of a machine for each class; one of two classes."""
    positive = [1] if y.max() == 1 else range(y.max() + 1)
    return np.stack([machine().fit(phi, y == k, **weights).decision_function(phi) for k in positive], axis=1)


def scores_of(learner: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mapped rows, and the decision values (n, K) of the learner's own machine on them."""
    phi = np.asarray(learner.transform(X), dtype=np.float64)
    return phi, phi @ learner.coef_.T + learner.intercept_


def assert_scale(found: np.ndarray, of: Callable[[float], np.ndarray], C: float, rtol: float) -> None:
    """The values are those at C, and far from those at half and twice as much."""
    size = np.abs(found).max()
    np.testing.assert_allclose(found, of(C), rtol=0, atol=rtol * size)
    for other in (C / 2.0, 2.0 * C):
        assert np.abs(found - of(other)).max() > 20.0 * rtol * size


@pytest.fixture
def long_settling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds end at the optimum, not near it."""
    monkeypatch.setattr(corrective, "RoundSchedule", partial(RoundSchedule, settling=300))
    monkeypatch.setattr(corrective, "_SETTLING_STEPS", 300)
    monkeypatch.setattr(corrective, "_LEAST_GAIN", {"log_loss": 1e-13, "squared_hinge": 1e-13})


def margin_features(loss: str | None, C: float, **options: Any) -> dkl.MarginFeatures:
    return dkl.MarginFeatures(WAVES, 24, loss=loss, C=C, dtype="float64", **OPTIONS, **options)


def linear_machine(loss: str, C: float) -> Any:
    if loss == "log_loss":
        return LogisticRegression(C=C, tol=1e-10, max_iter=10_000)
    return LinearSVC(C=C, dual=False, **FREE)


@pytest.mark.usefixtures("long_settling")
@pytest.mark.parametrize(("loss", "n_classes"), [("squared_hinge", 3), ("log_loss", 2)])
def test_rounds_end_at_the_machine_of_linear_svc_and_of_logistic_regression(loss: str, n_classes: int) -> None:
    X, y = classes(n_classes)
    phi, scores = scores_of(margin_features(loss, 0.5).fit(X, y), X)
    assert_scale(scores, lambda C: one_against_the_rest(lambda: linear_machine(loss, C), phi, y), 0.5, 1e-3)


@pytest.mark.usefixtures("long_settling")
@pytest.mark.parametrize("loss", [pytest.param("squared_hinge", marks=pytest.mark.slow), "log_loss"])
def test_weights_count_beside_c_as_in_scikit_learn(loss: str) -> None:
    X, y = classes(2)
    weight = np.random.default_rng(1).integers(1, 4, len(y)).astype(float)
    phi, scores = scores_of(margin_features(loss, 0.25).fit(X, y, sample_weight=weight), X)

    def expected(C: float) -> np.ndarray:
        return one_against_the_rest(lambda: linear_machine(loss, C), phi, y, sample_weight=weight)

    assert_scale(scores, expected, 0.25, 1e-3)


@pytest.mark.parametrize(
    ("loss", "n_classes", "C", "rtol"),
    [
        ("log_loss", 3, 0.5, 5e-3),
        ("squared_hinge", 2, 0.5, 1e-5),
        ("squared_hinge", 3, 0.0125, 5e-3),
    ],
)
def test_rounds_settle_near_the_machine_of_their_c_by_themselves(
    loss: str, n_classes: int, C: float, rtol: float
) -> None:
    X, y = classes(n_classes)
    phi, scores = scores_of(margin_features(loss, C).fit(X, y), X)
    assert_scale(scores, lambda C: one_against_the_rest(lambda: linear_machine(loss, C), phi, y), C, rtol)


@pytest.mark.parametrize("target", ["numbers", "classes"])
def test_rounds_with_squared_error_end_at_the_machine_of_linear_svr(target: str) -> None:
    """C multiplies the whole square of an error there, so that Ridge has alpha = 1/(2C)."""
    X, t = rows()
    y, learner = (5.0 + 3.0 * t, margin_features(None, 0.5)) if target == "numbers" else (classes(2)[1], None)
    learner = margin_features("squared_error", 0.5) if learner is None else learner
    phi, scores = scores_of(learner.fit(X, y), X)
    values = standardised(y) if target == "numbers" else 2.0 * y - 1.0
    found = (scores[:, 0] - y.mean()) / y.std() if target == "numbers" else scores[:, 0]
    assert_scale(found, lambda C: Ridge(1.0 / (2.0 * C)).fit(phi, values).predict(phi), 0.5, 1e-6)
    svr = LinearSVR(epsilon=0.0, loss="squared_epsilon_insensitive", C=0.5, dual=False, **FREE).fit(phi, values)
    np.testing.assert_allclose(found, svr.predict(phi), rtol=0, atol=1e-5)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_the_game_encloses_the_objective_of_a_support_vector_machine_of_its_c(loss: str) -> None:
    """|w|^2/2 + C sum loss, least for the kernel that the game has learned, is between the bounds of the game."""
    X, y = classes(2)
    learner = dkl.MarginFeatures(
        Coordinates(), 4, solver="game", loss=loss, C=0.5, rounds=15, dtype="float64", **OPTIONS
    ).fit(X, y)
    phi, last = np.asarray(learner.transform(X), dtype=np.float64), learner.history_[-1]

    def objective(C: float) -> float:
        machine = SVC(kernel="linear", C=C, tol=1e-8) if loss == "hinge" else LinearSVC(C=C, dual=False, **FREE)
        machine.fit(phi, y)
        losses = loss_of(loss).value(2.0 * y - 1.0, machine.decision_function(phi))
        return float(0.5 * np.sum(machine.coef_**2) + C * losses.sum())

    assert last["lower"] <= objective(0.5) <= last["upper"]
    assert objective(0.25) < last["lower"]
    assert last["upper"] < objective(1.0)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "squared_error"])
def test_joint_features_have_the_machine_of_their_c(loss: str) -> None:
    """Of numbers the half square of an error counts C times, as documented: Ridge has alpha = 1/C."""
    X, t = rows()
    y = t if loss == "squared_error" else classes(2)[1]
    learner = dkl.JointFeatures(WAVES, 30, None, rho=2, loss=loss, C=0.5, tol=1e-6, dtype="float64", **OPTIONS)
    phi, scores = scores_of(learner.fit(X, y), X)

    def expected(C: float) -> np.ndarray:
        if loss == "squared_error":
            return Ridge(1.0 / C).fit(phi, standardised(t)).predict(phi)
        machine = SVC(kernel="linear", C=C, tol=1e-8) if loss == "hinge" else LinearSVC(C=C, dual=False, **FREE)
        return machine.fit(phi, y).decision_function(phi)

    found = (scores[:, 0] - t.mean()) / t.std() if loss == "squared_error" else scores[:, 0]
    assert_scale(found, expected, 0.5, 1e-4)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "squared_error"])
def test_lam_of_tuned_machines_is_alpha_beside_the_mean_loss(loss: str) -> None:
    """With a fixed density: mean loss + lam/2 |w|^2, so C = 1/(lam n), and Ridge has alpha = lam n."""
    X, y = classes(2)
    n, lam = len(y), 1e-2
    options: dict[str, Any] = {"lam": lam, "Lam": np.inf, "tol": 1e-7, **OPTIONS}
    learner = dkl.TunedClassifier(24, family=WAVES, loss=loss, scaling=None, **options).fit(X, y)
    phi, scores = scores_of(learner, X)

    def expected(C: float) -> np.ndarray:
        if loss == "squared_error":
            return Ridge(1.0 / C).fit(phi, 2.0 * y - 1.0).predict(phi)
        machine = SVC(kernel="linear", C=C, tol=1e-8) if loss == "hinge" else LinearSVC(C=C, dual=False, **FREE)
        return machine.fit(phi, y).decision_function(phi)

    assert_scale(scores[:, 0], expected, 1.0 / (lam * n), 2e-4)
    t = rows()[1]
    regressor = dkl.TunedRegressor(24, family=WAVES, scaling=None, **options).fit(X, t)
    phi = np.asarray(regressor.transform(X), dtype=np.float64)
    assert_scale(regressor.predict(X), lambda C: Ridge(1.0 / C).fit(phi, t).predict(phi), 1.0 / (lam * n), 1e-6)


def random_features() -> dkl.RandomFeatures:
    return dkl.RandomFeatures(WAVES, 24, scaling=None, random_state=0)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_alpha_of_newton_steps_is_that_of_linear_svc(n_classes: int) -> None:
    X, y = classes(n_classes)
    machine = dkl.KernelClassifier(random_features(), loss="squared_hinge", solver="newton", alpha=1e-2, **OPTIONS)
    machine.fit(X, y)
    phi = np.asarray(machine.features_.transform(X), dtype=np.float64)
    found = machine.decision_function(X).reshape(len(X), -1)

    def expected(C: float) -> np.ndarray:
        return one_against_the_rest(lambda: LinearSVC(C=C, dual=False, **FREE), phi, y)

    assert_scale(found, expected, 1.0 / (1e-2 * len(X)), 1e-4)


def test_alpha_of_newton_steps_is_that_of_ridge_over_the_rows() -> None:
    X, t = rows()
    machine = dkl.KernelRegressor(random_features(), solver="newton", alpha=1e-2, **OPTIONS).fit(X, t)
    phi = np.asarray(machine.features_.transform(X), dtype=np.float64)
    assert_scale(machine.predict(X), lambda C: Ridge(1.0 / C).fit(phi, t).predict(phi), 1.0 / (1e-2 * len(X)), 1e-4)


def penalised(phi: np.ndarray, y: np.ndarray, loss: str, alpha: float) -> Callable[[np.ndarray], tuple[float, Any]]:
    """alpha/2 |w|^2 + the mean loss, as scikit-learn's SGD states it, and its gradient; the intercept is last."""

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        f, table = phi @ w[:-1] + w[-1], loss_of(loss)
        slope = table.slope(y, f) / len(y)
        value = 0.5 * alpha * w[:-1] @ w[:-1] + table.value(y, f).mean()
        return float(value), np.append(alpha * w[:-1] + phi.T @ slope, slope.sum())

    return objective


def reference(phi: np.ndarray, y: np.ndarray, loss: str, alpha: float) -> np.ndarray:
    """Coefficients and intercept of scikit-learn's machine; where it has none, those of a general solver."""
    C = 1.0 / (alpha * len(y))
    machines: dict[str, Any] = {
        "hinge": SVC(kernel="linear", C=C, tol=1e-8),
        "squared_hinge": LinearSVC(C=C, dual=False, **FREE),
        "log_loss": LogisticRegression(C=C, tol=1e-10, max_iter=10_000),
        "squared_error": Ridge(1.0 / C),
        "epsilon_insensitive": SVR(kernel="linear", C=C, epsilon=0.1, tol=1e-8),
    }
    if loss in machines:
        machine = machines[loss].fit(phi, y)
        return np.append(np.ravel(machine.coef_), machine.intercept_)
    options = {"maxiter": 10_000, "gtol": 1e-10, "ftol": 1e-15}
    found = minimize(
        penalised(phi, y, loss, alpha), np.zeros(phi.shape[1] + 1), jac=True, method="L-BFGS-B", options=options
    )
    return np.asarray(found.x)


LOSSES_OF_STEPS = ("hinge", "squared_hinge", "log_loss", "modified_huber")
ERRORS_OF_STEPS = ("squared_error", "epsilon_insensitive", "huber")


@pytest.mark.parametrize("loss", [*LOSSES_OF_STEPS, *ERRORS_OF_STEPS])
def test_alpha_of_stochastic_steps_is_that_of_scikit_learns_machines(loss: str) -> None:
    """They come much nearer to the least objective than the optimum of half or twice alpha does."""
    X, t = rows()
    alpha, epochs = 0.02, 80
    if loss in LOSSES_OF_STEPS:
        y, target = classes(2)[1], 2.0 * classes(2)[1] - 1.0
        machine: Any = dkl.KernelClassifier(random_features(), loss=loss, alpha=alpha, epochs=epochs, **OPTIONS)
        w = np.append(machine.fit(X, y).linear_.coef_[0], machine.linear_.intercept_)
    else:
        y, target = t, standardised(t)
        machine = dkl.KernelRegressor(
            random_features(), loss=loss, solver="sgd", alpha=alpha, epochs=epochs, **OPTIONS
        ).fit(X, y)
        w = np.append(np.ravel(machine.linear_.coef_), machine.linear_.intercept_ - t.mean()) / t.std()
    phi = np.asarray(machine.features_.transform(X), dtype=np.float64)
    objective = penalised(phi, target, loss, alpha)
    least = objective(reference(phi, target, loss, alpha))[0]
    lost = objective(w)[0] - least
    assert lost > -1e-6 * least
    for other in (alpha / 2.0, 2.0 * alpha):
        assert lost < 0.2 * (objective(reference(phi, target, loss, other))[0] - least)

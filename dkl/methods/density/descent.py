"""Adam for tuned random features: steps on weights and densities by minibatches of mapped rows; clips densities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dkl.kernels.device import array_module
from dkl.kernels.threads import product
from dkl.linear.adam import AdamState, adam_steps
from dkl.linear.minibatches import Minibatch, signs
from dkl.methods.density.loss_table import TunedLoss
from dkl.methods.density.penalty import DensityPenalty, MetaSpectrum
from dkl.protocols.arrays import as_columns
from dkl.solvers.losses import loss_of, namespace_of

# Steps after which the learning rate has decreased to 1 / sqrt(2) of the first.
_DECAY = 500.0


@dataclass(frozen=True, eq=False)
class TunedModel:
    """f_k(x) = w_k . phi(x) + b_k, with the densities by which the penalty divides squared weights.

    Parameters
    ----------
    coef : ndarray of shape (K, 2 D)
        Coefficients of all cosines, then of all sines, at amplitudes 1 / sqrt(D).
    intercept : ndarray of shape (K,)
    density : ndarray of shape (G, D)
        u; G is 1 if the models share one density, else K.
    """

    coef: np.ndarray
    intercept: np.ndarray
    density: np.ndarray

    @classmethod
    def first(cls, n_models: int, n_densities: int, penalty: DensityPenalty) -> TunedModel:
        """Zero weights, and the density of the reference kernel."""
        start = np.tile(penalty.start(), (n_densities, 1))
        return cls(np.zeros((n_models, 2 * penalty.n_frequencies)), np.zeros(n_models), start)

    @classmethod
    def of(cls, values: np.ndarray, shape: tuple[int, int, int]) -> TunedModel:
        """The model whose numbers are in `values`, as views; `shape` is (K, G, D)."""
        K, G, D = shape
        coef, intercept, density = values[: 2 * K * D], values[2 * K * D : 2 * K * D + K], values[2 * K * D + K :]
        return cls(coef.reshape(K, 2 * D), intercept, density.reshape(G, D))

    @property
    def values(self) -> np.ndarray:
        """All numbers of the model in one vector."""
        parts = [self.coef.ravel(), self.intercept, self.density.ravel()]
        return namespace_of(self.coef).concat(parts)  # type: ignore[no-any-return]

    def clip(self, lam: float, penalty: DensityPenalty) -> None:
        """Raise the density to its floor, in place; if it has a closed form for these weights, set it to that."""
        if penalty.separable:
            self.density[...] = penalty.eliminate(self.squares, lam).density
        else:
            self.density[...] = np.maximum(self.density, penalty.floor)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(K, G, D)."""
        return len(self.coef), *self.density.shape

    @property
    def squares(self) -> np.ndarray:
        """|w_j|^2, summed over the models that share a density: (G, D)."""
        K, G, D = self.shape
        # the weights of a cosine and of its sine belong to one frequency
        lengths = (self.coef.reshape(K, 2, D) ** 2).sum(axis=1)
        return lengths.sum(axis=0, keepdims=True) if G == 1 else lengths


@dataclass(frozen=True, eq=False)
class TunedDescent(AdamState):
    """A `TunedModel` during its fit.

    Attributes
    ----------
    shape : tuple of int
        (K, G, D).
    trace : ndarray of shape (epochs, 2)
        For each epoch the objectives of its batches, summed with their rows as weights, and the number of rows.
    """

    shape: tuple[int, ...] = ()
    trace: np.ndarray = field(default_factory=lambda: np.zeros((0, 2)))

    @classmethod
    def of(cls, model: TunedModel) -> TunedDescent:
        """The state before the first step from a model."""
        return cls.begin(model.values, shape=model.shape)

    @property
    def model(self) -> TunedModel:
        """The averaged model, on centred rows."""
        return TunedModel.of(self.average, self.shape)  # type: ignore[arg-type]

    @property
    def average_coef(self) -> np.ndarray:
        """The averaged weights, which `dkl.linear.epochs` judges on held-out rows."""
        return self.model.coef

    @property
    def average_intercept(self) -> np.ndarray:
        """The averaged intercepts."""
        return self.model.intercept


def tuned_gradient(
    phi: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray | None,
    model: TunedModel,
    *,
    loss: TunedLoss,
    lam: float,
    penalty: DensityPenalty,
) -> tuple[float, TunedModel]:
    """The objective on a batch and its (sub)gradient in weights, intercepts and densities.

    ``(1/n) sum_i s_i sum_k l(f_k(x_i), y_ik) + lam/2 sum_j |w_j|^2 / u_j + Lam/2 (u - c)' H (u - c)``, Shilton et al.
    2022, (22) with the last term's factor as in (8). Where each frequency has a penalty of its own (G = I), u is
    eliminated: its gradient is 0.

    Parameters
    ----------
    phi : array of shape (n, 2 D)
        On the host; or together with targets, weights, model and the spectrum of the penalty on a GPU.
    targets : array of shape (n, K)
        -1 and +1, or any numbers for "squared_error".
    weight : ndarray of shape (n,) or None
        s, of mean 1.
    model : TunedModel
    loss : {"squared_error", "hinge", "squared_hinge"}
    lam : float
    penalty : DensityPenalty
    """
    # products have the precision of the features; scores and penalties, which are small arrays, are float64
    scores = phi @ model.coef.T.astype(phi.dtype) + model.intercept
    table = loss_of(loss)
    mean_loss, slope = table.mean_value(targets, scores, weight), table.mean_slope(targets, scores, weight)
    xp = namespace_of(phi)
    multiplied = product if xp is np else xp.matmul
    by_losses = multiplied(slope.T.astype(phi.dtype), phi).astype(np.float64)
    u, squares = model.density, model.squares
    if penalty.separable:
        # u is optimal for w: the derivative in |w_j|^2 is lam / (2 u_j), infinite at w = 0, where that in w is 0
        best = penalty.eliminate(squares, lam)
        by_square = xp.where(squares > 0.0, best.slope, 0.0)
        by_penalties = 2.0 * xp.tile(by_square, 2) * model.coef
        value, by_density = best.value, xp.zeros_like(u)
    else:
        by_u, ridge = penalty.gradient(u), 0.5 * lam * squares / u
        # the penalty is quadratic in u - c: its value is half the product with its gradient
        value = ridge.sum() + 0.5 * ((u - penalty.center) * by_u).sum()
        by_penalties = lam * model.coef / xp.tile(u, 2)
        by_density = xp.zeros_like(u) if penalty.fixed else by_u - ridge / u
    gradient = TunedModel(by_losses + by_penalties, slope.sum(axis=0), by_density)
    return mean_loss + value, gradient


def tuned_step(state: TunedDescent, minibatch: Minibatch, operands: Mapping[str, Any]) -> TunedDescent:
    """The state after the batches of a minibatch; `state` is unchanged.

    Operands: "loss", "lam", "penalty", "n_classes" (or None), "rate", "batch_rows", and those of `shuffled_minibatch`,
    such as "epoch". A step is one of Adam (Kingma & Ba 2015), after which u is clipped (Shilton et al. 2022, section
    5).
    """
    n_classes, minibatch = operands["n_classes"], minibatch.ordered
    phi, xp, lam = minibatch.phi, array_module(minibatch.phi), operands["lam"]
    penalty = operands["penalty"] if xp is np else _penalty_on_device(operands["penalty"], xp)
    targets = as_columns(minibatch.y) if n_classes is None else signs(minibatch.y, n_classes)

    def model_of(values: np.ndarray) -> TunedModel:
        return TunedModel.of(values, state.shape)  # type: ignore[arg-type]

    def objective(batch: slice, model: TunedModel) -> tuple[float, np.ndarray]:
        weight = None if minibatch.weight is None else minibatch.weight[batch]
        value, gradient = tuned_gradient(
            phi[batch], targets[batch], weight, model, loss=operands["loss"], lam=lam, penalty=penalty
        )
        return value, gradient.values

    def rates(step: int) -> np.ndarray:
        # with a constant rate clipped steps would not converge, but move around the optimum
        rates: np.ndarray = xp.full(len(state.values), operands["rate"] / np.sqrt(1.0 + step / _DECAY))
        return rates

    # the first minibatch of an epoch adds its line to the trace
    missing = np.zeros((max(0, operands["epoch"] + 1 - len(state.trace)), 2))
    trace = np.concatenate([state.trace, missing])
    # the objectives before the steps estimate the epoch's objective without a further pass
    state, total = adam_steps(
        state,
        phi,
        operands["batch_rows"],
        model_of,
        objective,
        rates,
        constrain=lambda model: model.clip(lam, penalty),
        total=trace[-1, 0],
    )
    trace[-1] = total, trace[-1, 1] + len(phi)
    return replace(state, trace=trace)


# The penalties of running folds, with their spectrum on this process's GPU.
_on_gpu: WeakKeyDictionary[DensityPenalty, DensityPenalty] = WeakKeyDictionary()


def _penalty_on_device(penalty: DensityPenalty, xp: Any) -> DensityPenalty:
    """The penalty with its spectrum on the GPU, where it is copied once."""
    if penalty not in _on_gpu:
        values, vectors = penalty.spectrum.values, penalty.spectrum.vectors
        there = MetaSpectrum(xp.asarray(values), None if vectors is None else xp.asarray(vectors))
        _on_gpu[penalty] = replace(penalty, spectrum=there)
    return _on_gpu[penalty]

"""Fits tuned random features by epochs of Adam: a summary of the rows, the epochs, and the final model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dkl.linear.epochs import EpochDriver, EpochProblem, EpochState, uncentred
from dkl.linear.fitting import LinearProblem, epoch_problem, rows_of_epochs
from dkl.linear.judge import last_gain
from dkl.linear.summary import Summary
from dkl.linear.target_statistics import TargetScale
from dkl.methods.density.descent import TunedDescent, TunedModel, tuned_step
from dkl.methods.density.penalty import DensityPenalty
from dkl.passes.loop import Run
from dkl.passes.session import PassStats
from dkl.protocols.source import BlockSource

# Steps of Adam that a default fit takes at least, within the bounds on its epochs; and rows of a batch, the small one
# for fewer than _MANY_ROWS rows.
_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 6_000, 10, 400
_SMALL_BATCH, _LARGE_BATCH, _MANY_ROWS = 32, 512, 65_536
# The cost of a step, for plans, in operations of a matrix product: for each number of the meta-kernel's eigenvectors,
# which a step reads twice, and for each number of the model, which Adam updates.
_MATRIX_FLOPS, _NUMBER_FLOPS = 40.0, 300.0


@dataclass(frozen=True)
class Descent:
    """The options of Adam.

    Parameters
    ----------
    epochs : int or None
        The most epochs; None is 10, and more on few rows.
    rate : float
        The learning rate of the first steps; it decreases with the square root of their number.
    patience : int or None
        Epochs without a lower held-out loss after which the descent stops; None runs all epochs.
    shared : bool
        Whether all models share one density.
    """

    epochs: int | None = None
    rate: float = 0.1
    patience: int | None = None
    shared: bool = True


@dataclass(frozen=True, eq=False)
class AdamFit:
    """The result of the epochs.

    Attributes
    ----------
    model : TunedModel
        For uncentred mapped rows (the epochs centre them), and standardised targets.
    units : TargetScale
        Of numeric targets.
    losses : tuple of float
        The held-out loss after each epoch, with patience.
    trace : ndarray of shape (epochs,)
        For each epoch the mean objective of its batches, each before its step.
    ended : str
        Why the epochs ended early, if a subscriber stopped them; else empty.
    """

    model: TunedModel
    units: TargetScale
    losses: tuple[float, ...]
    trace: np.ndarray
    ended: str = ""

    def message(self, objective: float, gap: float) -> str:
        """A sentence on how the epochs ended, from the model's objective and duality gap (NaN if not computed)."""
        share = gap / max(objective, np.finfo(np.float64).tiny)
        best = f", the best of which ({last_gain(self.losses) + 1}) was kept," if self.losses else ""
        bound = f"end at most {100.0 * share:.2g} % above the optimum" if share < 1.0 else "end where no bound is known"
        why = f"{self.ended}: " if self.ended else ""
        return f"{why}{len(self.trace)} epochs of Adam{best} {bound}; more epochs, or solver='full', come nearer"

    def history(self) -> list[dict[str, float]]:
        """One line for each epoch: the objective of its batches, and the held-out loss with early stopping."""
        lines = []
        for epoch, objective in enumerate(self.trace):
            line = {"epoch": float(epoch + 1), "objective": float(objective)}
            lines.append(line | ({"held_out_loss": self.losses[epoch]} if self.losses else {}))
        return lines


def fit_by_adam(
    problem: LinearProblem, penalty: DensityPenalty, source: BlockSource, run: Run, descent: Descent
) -> tuple[AdamFit, list[PassStats]]:
    """Epochs of Adam with clipping over the shuffled blocks (Shilton et al. 2022, section 5).

    Parameters
    ----------
    problem : LinearProblem
        Its `alpha` is lam of equation (22).
    penalty : DensityPenalty
    source : BlockSource
    run : Run
    descent : Descent

    Returns
    -------
    fit : AdamFit
    stats : list of PassStats

    Raises
    ------
    ValueError
        If all rows are held out, or none is although early stopping needs some.

    Warns
    -----
    UserWarning
        If rows look sorted, so that steps would be biased unless several blocks are read for each.
    """
    # one pass finds the means of the features, the units of the targets, and whether rows look sorted
    summary, mixed = rows_of_epochs(problem, source, run, descent.patience)
    task = adam_problem(problem, penalty, summary, descent, n_blocks=mixed.n_blocks)

    def fit(state: EpochState) -> AdamFit:
        final = TunedDescent(**state.result)
        coef, intercept = uncentred(final, summary.center)
        model = TunedModel(coef, intercept, final.model.density.copy())
        # the average of densities is not the density of the averaged weights, so it is computed again
        model.clip(problem.alpha, penalty)
        # the best epoch is kept, while the trace has all epochs
        trace = TunedDescent(**state.model).trace
        means = trace[:, 0] / np.maximum(trace[:, 1], 1.0)
        return AdamFit(model, summary.units, state.losses, means, state.ended)

    state, stats = run.drive(EpochDriver(), task, mixed, model=run.looked_at(fit))
    return fit(state), stats


def adam_problem(
    problem: LinearProblem, penalty: DensityPenalty, summary: Summary, descent: Descent, *, n_blocks: int
) -> EpochProblem:
    """The problem of the epochs, for `EpochDriver`.

    Rows are centred, so that the intercept does not have to follow the weights; class weights have a mean of 1 over the
    rows, so that they do not affect the learning rate.
    """
    n_rows, n_models = summary.n_rows, problem.n_models
    # on few rows small minibatches make more steps; on many rows larger ones cost less for each row
    batch = _SMALL_BATCH if n_rows <= _MANY_ROWS else _LARGE_BATCH
    first = TunedModel.first(n_models, 1 if descent.shared else n_models, penalty)
    # the cost of a step besides the products with its rows: Adam on all numbers, and the gradient of the penalty
    numbers = len(first.values)
    matrix = 0 if penalty.separable else len(first.density) * penalty.n_frequencies**2
    # steps and judging passes read the numbers of the classes
    codes = None if problem.classes is None else np.arange(len(problem.classes))
    return epoch_problem(
        replace(problem, classes=codes),
        summary,
        step=tuned_step,
        step_operands={
            "loss": problem.loss,
            "lam": problem.alpha,
            "penalty": penalty,
            "n_classes": problem.n_classes,
            "rate": descent.rate,
            "batch_rows": batch,
        },
        first=TunedDescent.of(first),
        n_blocks=n_blocks,
        epochs=default_epochs(n_rows, batch) if descent.epochs is None else descent.epochs,
        stopping=None if descent.patience is None else problem.stopping(descent.patience),
        row_flops=4.0 * first.coef.size + (_MATRIX_FLOPS * matrix + _NUMBER_FLOPS * numbers) / batch,
    )


def default_epochs(n_rows: float, batch: int) -> int:
    """10 epochs, or on few rows the number that makes 6,000 steps, up to 400."""
    return int(np.clip(np.ceil(_STEPS * batch / max(n_rows, 1.0)), _FEWEST_EPOCHS, _MOST_EPOCHS))

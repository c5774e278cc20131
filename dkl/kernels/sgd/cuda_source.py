"""The CUDA sources of `dkl.kernels.sgd.steps`: a thread block takes steps of one model on rows in order.

A step depends on earlier ones only by the score of its row, and scores of a batch of rows follow from their products
with the models at its start and with each other, which all multiprocessors of a GPU compute at once. So `sgd_shares`
takes the steps of a batch from these numbers, and the new models are sums of its rows. The l1 penalty stops each
coefficient at 0 separately, which such sums cannot express: `sgd_rows` updates all coefficients with each row. Steps of
the softmax loss depend on the scores of all models: `sgd_jointly` updates the coefficients of all.
"""

from __future__ import annotations

import numpy as np

from dkl.kernels.sgd.rule import SGDRule
from dkl.solvers.losses import LOG_LINK

# the square of GROUP threads share the coefficients of a model, or the rows of a batch
GROUP = 16

# `slope` of `dkl.solvers.losses` in C; a test compares the two
_SLOPES = {
    "hinge": "y * p <= 1 ? -y : 0",
    "perceptron": "y * p <= 0 ? -y : 0",
    "squared_hinge": "y * p < 1 ? -2 * y * (1 - y * p) : 0",
    "modified_huber": "y * p < -1 ? -4 * y : y * p < 1 ? -2 * y * (1 - y * p) : 0",
    "log_loss": "-y / (1 + exp(y * p))",
    "squared_error": "p - y",
    "huber": "fmin(fmax(p - y, -epsilon), epsilon)",
    "epsilon_insensitive": "p - y > epsilon ? 1 : y - p > epsilon ? -1 : 0",
    "squared_epsilon_insensitive": "2 * (p - y - fmin(fmax(p - y, -epsilon), epsilon))",
    "poisson": "exp(p) - y",
    "gamma": "1 - y * exp(-p)",
    "pinball": "p >= y ? 1 - epsilon : -epsilon",
}
_PASSIVE_STEPS = {"pa1": "fmin(loss / square, eta)", "pa2": "loss / (square + 0.5 / eta)"}

# Computed by the first thread from the score p of row i, whose squared length is `square`: the step, and the factor of
# w.
_STEP = r"""
            const double y = Y[(size_t)i * K + k], eta = steps[i];
            const bool passed_over = PASSES_OVER && square == 0;
            RULE
            step *= S[(size_t)i * K + k];
            if (BOUNDED) step = fmin(fmax(step, -1 / (square + 1)), 1 / (square + 1));
            if (p != p) step = p; // a slope may take no notice of a score that has overflown: the coefficients shall
            if (passed_over) step = 0;
            shrink = passed_over ? 1 : fmax(0.0, 1 - eta * l2);
            b += intercept_rate * step;
"""

_BATCH_SOURCE = r"""
// What becomes of a model and of its mean in a batch, in shares of both and of the rows: with w the model at the start,
// kept w + sum_j taken[j] x_j, and held mean + mixed w + sum_j meant[j] x_j. P are products of the rows with w, G with
// each other.
extern "C" __global__ void sgd_shares(
    const double* __restrict__ P, const double* __restrict__ G, const double* __restrict__ Y,
    const double* __restrict__ S, const double* __restrict__ steps, double* shares, double* factors, double* state,
    const int n, const int K, const double l2, const double epsilon, const double intercept_rate,
    const double first_averaged)
{
    __shared__ double sums[GROUP * GROUP];
    __shared__ double step, shrink, share;
    const int thread = threadIdx.x, k = blockIdx.x;
    double* taken = shares + (size_t)k * 2 * n;
    double* meant = taken + n;
    double kept = 1, held = 1, mixed = 0, b = state[k], mean_b = state[K + k], clock = state[2 * K + k];
    for (int i = 0; i < n; ++i) {
        // The score of row i, of the rows before it in shares that each thread has for its own.
        double product = thread == 0 ? kept * P[(size_t)i * K + k] : 0;
        for (int j = thread; j < i; j += GROUP * GROUP) product += taken[j] * G[(size_t)i * n + j];
        sums[thread] = product;
        __syncthreads();
        if (thread < GROUP)
            for (int other = thread + GROUP; other < GROUP * GROUP; other += GROUP) sums[thread] += sums[other];
        __syncthreads();
        if (thread == 0) {
            double p = b;
            for (int other = 0; other < GROUP; ++other) p += sums[other];
            const double square = G[(size_t)i * n + i];
            STEP
            share = AVERAGED && !passed_over && first_averaged <= clock ? 1 / (clock - first_averaged + 1) : 0;
            mean_b += share * (b - mean_b);
            if (!passed_over) clock += 1;
        }
        __syncthreads();
        kept *= shrink;
        for (int j = thread; j <= i; j += GROUP * GROUP) {
            taken[j] = j < i ? shrink * taken[j] : step;
            if (AVERAGED) meant[j] += share * (taken[j] - meant[j]);
        }
        held -= share * held;
        mixed += share * (kept - mixed);
    }
    if (thread == 0) {
        factors[k] = kept;
        factors[K + k] = held;
        factors[2 * K + k] = mixed;
        state[k] = b;
        state[K + k] = mean_b;
        state[2 * K + k] = clock;
    }
}
"""

_ROWS_SOURCE = r"""
// One walk over the coefficients a row: they take the step of the row before, and their product with this row is begun.
// Each coefficient belongs to one thread, and the first thread alone knows the rule.
extern "C" __global__ void sgd_rows(
    const REAL* __restrict__ X, const double* __restrict__ Y, const double* __restrict__ S,
    const double* __restrict__ steps, REAL* coef, REAL* owed, double* intercepts,
    const int n, const int m, const int K, const double l1, const double l2, const double epsilon,
    const double intercept_rate)
{
    __shared__ double sums[2][GROUP * GROUP];
    __shared__ double step, shrink, debt;
    const int thread = threadIdx.x, k = blockIdx.x;
    REAL* w = coef + (size_t)k * m;
    REAL* paid = owed + (size_t)k * m;
    double b = intercepts[k];
    if (thread == 0) debt = 0;
    for (int i = 0; i <= n; ++i) {
        const REAL* x = X + (size_t)i * m;
        double product = 0, square = 0;
        for (int j = thread; j < m; j += GROUP * GROUP) {
            REAL v = w[j];
            if (i > 0) {
                const REAL last = X[(size_t)(i - 1) * m + j];
                v = (REAL)shrink * v + (REAL)step * last;
                if (!SPARSE || last != 0) {
                    const REAL before = v;
                    if (v > 0) {
                        v -= (REAL)debt + paid[j];
                        if (v < 0) v = 0;
                    } else if (v < 0) {
                        v += (REAL)debt - paid[j];
                        if (v > 0) v = 0;
                    }
                    paid[j] += v - before;
                }
                w[j] = v;
            }
            if (i < n) {
                product += (double)(v * x[j]);
                square += (double)x[j] * x[j];
            }
        }
        if (i == n) break;
        sums[0][thread] = product;
        sums[1][thread] = square;
        __syncthreads();
        if (thread < GROUP)
            for (int other = thread + GROUP; other < GROUP * GROUP; other += GROUP) {
                sums[0][thread] += sums[0][other];
                sums[1][thread] += sums[1][other];
            }
        __syncthreads();
        if (thread == 0) {
            double p = b;
            square = 0;
            for (int other = 0; other < GROUP; ++other) {
                p += sums[0][other];
                square += sums[1][other];
            }
            STEP
            if (!passed_over) debt += l1 * eta;
        }
        __syncthreads();
    }
    if (thread == 0) intercepts[k] = b;
}
"""

_JOINT_SOURCE = r"""
// The softmax loss, whose step in each model depends on the scores of all: one block of threads for all models, whose
// coefficients belong to a thread each; the first thread alone knows the rule. `shares` has room for K numbers.
extern "C" __global__ void sgd_jointly(
    const REAL* __restrict__ X, const double* __restrict__ Y, const double* __restrict__ S,
    const double* __restrict__ steps, REAL* coef, REAL* mean, REAL* owed, double* intercepts, double* shares,
    const int n, const int m, const int K, const double l1, const double l2, const double intercept_rate,
    const double first_clock, const double first_averaged)
{
    __shared__ double sums[GROUP * GROUP];
    __shared__ double share;
    const int thread = threadIdx.x;
    double debt = 0;
    for (int i = 0; i < n; ++i) {
        const REAL* x = X + (size_t)i * m;
        const double eta = steps[i], clock = first_clock + i;
        for (int k = 0; k < K; ++k) {
            double product = 0;
            for (int j = thread; j < m; j += GROUP * GROUP) product += (double)(coef[(size_t)k * m + j] * x[j]);
            sums[thread] = product;
            __syncthreads();
            if (thread < GROUP)
                for (int other = thread + GROUP; other < GROUP * GROUP; other += GROUP) sums[thread] += sums[other];
            __syncthreads();
            if (thread == 0) {
                double p = intercepts[k];
                for (int other = 0; other < GROUP; ++other) p += sums[other];
                shares[k] = p;
            }
            __syncthreads();
        }
        if (thread == 0) {
            double top = shares[0], total = 0;
            for (int k = 1; k < K; ++k) top = shares[k] > top ? shares[k] : top;
            for (int k = 0; k < K; ++k) total += exp(shares[k] - top);
            share = AVERAGED && first_averaged <= clock ? 1 / (clock - first_averaged + 1) : 0;
            for (int k = 0; k < K; ++k) {
                const double p = shares[k], own = Y[(size_t)i * K + k] > 0 ? 1 : 0;
                double step = -eta * (exp(p - top) / total - own) * S[(size_t)i * K + k];
                if (p != p) step = p;
                shares[k] = step;
                intercepts[k] += intercept_rate * step;
                intercepts[K + k] += share * (intercepts[k] - intercepts[K + k]);
            }
        }
        __syncthreads();
        debt += l1 * eta;
        const REAL shrink = (REAL)fmax(0.0, 1 - eta * l2);
        for (size_t k = 0; k < K; ++k)
            for (int j = thread; j < m; j += GROUP * GROUP) {
                REAL v = shrink * coef[k * m + j] + (REAL)shares[k] * x[j];
                if (AVERAGED && share > 0)
                    mean[k * m + j] = (REAL)(1 - share) * mean[k * m + j] + (REAL)share * v;
                if (l1 > 0 && (!SPARSE || x[j] != 0)) {
                    const REAL before = v;
                    if (v > 0) {
                        v -= owed[k * m + j] + (REAL)debt;
                        if (v < 0) v = 0;
                    } else if (v < 0) {
                        v += (REAL)debt - owed[k * m + j];
                        if (v > 0) v = 0;
                    }
                    owed[k * m + j] += v - before;
                }
                coef[k * m + j] = v;
            }
        __syncthreads();
    }
}
"""


def sgd_source(rule: SGDRule, dtype: np.dtype, group: int = GROUP) -> str:
    """The source for rules of one kind (their numbers are arguments), for NVRTC or nvcc; `group` squared threads.

    The kernel is ``sgd_jointly`` for the softmax loss, ``sgd_rows`` for other rules with an l1 penalty, and
    ``sgd_shares`` for all others.
    """
    step = ""
    if rule.is_passive:
        # a passive-aggressive step brings the row's loss to zero, within the rule's bound
        hinged = rule.loss == "hinge"
        loss, towards = ("1 - y * p", "y") if hinged else ("fabs(y - p) - epsilon", "(y < p ? -1 : 1)")
        length = _PASSIVE_STEPS[rule.learning_rate]
        step = f"const double loss = fmax(0.0, {loss}); step = {towards} * {length};"
    elif rule.loss != "softmax":
        step = f"const double slope = {_SLOPES[rule.loss]}; step = -eta * fmin(fmax(slope, -1e12), 1e12);"
    # unused parts of a rule are not compiled: averaging and sparse rows would cost a branch for every number
    names = {
        "REAL": {"float32": "float", "float64": "double"}[dtype.name],
        "GROUP": group,
        "AVERAGED": int(rule.average > 0),
        "SPARSE": int(rule.sparse),
        "PASSES_OVER": int(rule.learning_rate == "pa1"),
        "BOUNDED": int(rule.loss in LOG_LINK),
        "RULE": step,
    }
    source = _JOINT_SOURCE if rule.loss == "softmax" else _ROWS_SOURCE if rule.penalties[0] else _BATCH_SOURCE
    body = source.replace("            STEP\n", _STEP.lstrip("\n"))
    return "\n".join([*(f"#define {name} {value}" for name, value in names.items()), body])

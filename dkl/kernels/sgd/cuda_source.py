"""The CUDA sources of `dkl.kernels.sgd.steps`: a thread block takes steps of one model on rows in order.

A step depends on earlier ones only by the score of its row, and scores of a batch of rows follow from their products
with the models at its start and with each other, which all multiprocessors of a GPU compute at once. So `sgd_shares`
takes the steps of a batch from these numbers, and the new models are sums of its rows. Steps of the softmax loss depend
on the scores of all models: `sgd_jointly` updates the coefficients of all. Other rules, which machines do not use, are
stepped through on the host (`SGDRule.suits_gpu`).
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
    "squared_hinge": "y * p < 1 ? -2 * y * (1 - y * p) : 0",
    "modified_huber": "y * p < -1 ? -4 * y : y * p < 1 ? -2 * y * (1 - y * p) : 0",
    "log_loss": "-y / (1 + exp(y * p))",
    "squared_error": "p - y",
    "huber": "fmin(fmax(p - y, -epsilon), epsilon)",
    "epsilon_insensitive": "p - y > epsilon ? 1 : y - p > epsilon ? -1 : 0",
    "poisson": "exp(p) - y",
    "gamma": "1 - y * exp(-p)",
    "pinball": "p >= y ? 1 - epsilon : -epsilon",
}

_BATCH_SOURCE = r"""
// What becomes of a model in a batch, in shares of it and of the rows: with w the model at the start, kept w + sum_j
// taken[j] x_j. P are products of the rows with w, G with each other.
extern "C" __global__ void sgd_shares(
    const double* __restrict__ P, const double* __restrict__ G, const double* __restrict__ Y,
    const double* __restrict__ S, const double* __restrict__ steps, double* shares, double* factors, double* intercepts,
    const int n, const int K, const double l2, const double epsilon, const double intercept_rate)
{
    __shared__ double sums[GROUP * GROUP];
    __shared__ double step, shrink;
    const int thread = threadIdx.x, k = blockIdx.x;
    double* taken = shares + (size_t)k * n;
    double kept = 1, b = intercepts[k];
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
            const double y = Y[(size_t)i * K + k], eta = steps[i], square = G[(size_t)i * n + i];
            const double slope = SLOPE;
            step = -eta * fmin(fmax(slope, -1e12), 1e12);
            step *= S[(size_t)i * K + k];
            if (BOUNDED) step = fmin(fmax(step, -1 / (square + 1)), 1 / (square + 1));
            if (p != p) step = p; // a slope may take no notice of a score that has overflown: the coefficients shall
            shrink = fmax(0.0, 1 - eta * l2);
            b += intercept_rate * step;
        }
        __syncthreads();
        kept *= shrink;
        for (int j = thread; j <= i; j += GROUP * GROUP) taken[j] = j < i ? shrink * taken[j] : step;
    }
    if (thread == 0) {
        factors[k] = kept;
        intercepts[k] = b;
    }
}
"""


_JOINT_SOURCE = r"""
// The softmax loss, whose step in each model depends on the scores of all: one block of threads for all models, whose
// coefficients belong to a thread each; the first thread alone knows the rule. `shares` has room for K numbers.
extern "C" __global__ void sgd_jointly(
    const REAL* __restrict__ X, const double* __restrict__ Y, const double* __restrict__ S,
    const double* __restrict__ steps, REAL* coef, double* intercepts, double* shares,
    const int n, const int m, const int K, const double l2, const double intercept_rate)
{
    __shared__ double sums[GROUP * GROUP];
    const int thread = threadIdx.x;
    for (int i = 0; i < n; ++i) {
        const REAL* x = X + (size_t)i * m;
        const double eta = steps[i];
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
            for (int k = 0; k < K; ++k) {
                const double p = shares[k], own = Y[(size_t)i * K + k] > 0 ? 1 : 0;
                double step = -eta * (exp(p - top) / total - own) * S[(size_t)i * K + k];
                if (p != p) step = p;
                shares[k] = step;
                intercepts[k] += intercept_rate * step;
            }
        }
        __syncthreads();
        const REAL shrink = (REAL)fmax(0.0, 1 - eta * l2);
        for (size_t k = 0; k < K; ++k)
            for (int j = thread; j < m; j += GROUP * GROUP)
                coef[k * m + j] = shrink * coef[k * m + j] + (REAL)shares[k] * x[j];
        __syncthreads();
    }
}
"""


def sgd_source(rule: SGDRule, dtype: np.dtype, group: int = GROUP) -> str:
    """The source for rules of one loss (their numbers are arguments), for NVRTC or nvcc; `group` squared threads.

    The kernel is ``sgd_jointly`` for the softmax loss, and ``sgd_shares`` for all others.
    """
    names = {"GROUP": group, "REAL": {"float32": "float", "float64": "double"}[dtype.name]}
    if rule.loss == "softmax":
        source = _JOINT_SOURCE
    else:
        source = _BATCH_SOURCE
        names |= {"BOUNDED": int(rule.loss in LOG_LINK), "SLOPE": f"({_SLOPES[rule.loss]})"}
    return "\n".join([*(f"#define {name} {value}" for name, value in names.items()), source])

"""The CUDA source of `dkl.kernels.sgd.steps`: a thread block takes all rows, in order, through one model."""

from __future__ import annotations

import numpy as np

from dkl.kernels.sgd.rule import SGDRule

# the square of GROUP threads share the coefficients of a model
GROUP = 16

# in C, what `slope` of `dkl.solvers.losses` is in Python; a test compares the two
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
}
_PASSIVE_STEPS = {"pa1": "fmin(loss / square, eta)", "pa2": "loss / (square + 0.5 / eta)"}

_SOURCE = r"""
// One walk over the coefficients a row: they take the step of the row before, and their product with this row is begun.
// Each coefficient belongs to one thread, and the first thread alone knows the rule.
extern "C" __global__ void sgd_rows(
    const REAL* __restrict__ X, const double* __restrict__ Y, const double* __restrict__ S,
    const double* __restrict__ steps, REAL* coef, REAL* mean, REAL* owed, double* intercepts,
    const int n, const int m, const int K, const double l1, const double l2, const double epsilon,
    const double intercept_rate, const double first_clock, const double first_averaged)
{
    __shared__ double sums[2][GROUP * GROUP];
    __shared__ double step, shrink, share, debt;
    const int thread = threadIdx.x, k = blockIdx.x;
    REAL* w = coef + (size_t)k * m;
    REAL* average = mean + (size_t)k * m;
    REAL* paid = owed + (size_t)k * m;
    double b = intercepts[k], mean_b = intercepts[K + k], clock = first_clock;
    if (thread == 0) debt = 0;
    for (int i = 0; i <= n; ++i) {
        const REAL* x = X + (size_t)i * m;
        double product = 0, square = 0;
        for (int j = thread; j < m; j += GROUP * GROUP) {
            REAL v = w[j];
            if (i > 0) {
                const REAL last = X[(size_t)(i - 1) * m + j];
                v = (REAL)shrink * v + (REAL)step * last;
                if (AVERAGED) average[j] += (REAL)share * (v - average[j]);
                if (TRUNCATED && (!SPARSE || last != 0)) {
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
            const double y = Y[(size_t)i * K + k], eta = steps[i];
            const bool passed_over = PASSES_OVER && square == 0;
            RULE
            step *= S[(size_t)i * K + k];
            if (p != p) step = p; // a slope may take no notice of a score that has overflown: the coefficients shall
            if (passed_over) step = 0;
            shrink = passed_over ? 1 : fmax(0.0, 1 - eta * l2);
            share = AVERAGED && !passed_over && first_averaged <= clock ? 1 / (clock - first_averaged + 1) : 0;
            b += intercept_rate * step;
            mean_b += share * (b - mean_b);
            if (!passed_over) {
                debt += l1 * eta;
                clock += 1;
            }
        }
        __syncthreads();
    }
    if (thread == 0) {
        intercepts[k] = b;
        intercepts[K + k] = mean_b;
    }
}
"""


def sgd_source(rule: SGDRule, dtype: np.dtype, group: int = GROUP) -> str:
    """The source for rules of one kind (their numbers are arguments), for NVRTC or nvcc; `group` squared threads."""
    if rule.is_passive:
        # A passive-aggressive step is as long as brings the row's loss to zero, within the rule's bound.
        hinged = rule.loss == "hinge"
        loss, towards = ("1 - y * p", "y") if hinged else ("fabs(y - p) - epsilon", "(y < p ? -1 : 1)")
        length = _PASSIVE_STEPS[rule.learning_rate]
        step = f"const double loss = fmax(0.0, {loss}); step = {towards} * {length};"
    else:
        step = f"const double slope = {_SLOPES[rule.loss]}; step = -eta * fmin(fmax(slope, -1e12), 1e12);"
    # What a rule never does is compiled out: averaging, truncation and sparse rows cost a branch a coefficient
    # otherwise.
    names = {
        "REAL": {"float32": "float", "float64": "double"}[dtype.name],
        "GROUP": group,
        "AVERAGED": int(rule.average > 0),
        "TRUNCATED": int(rule.penalties[0] > 0),
        "SPARSE": int(rule.sparse),
        "PASSES_OVER": int(rule.learning_rate == "pa1"),
        "RULE": step,
    }
    return "\n".join([*(f"#define {name} {value}" for name, value in names.items()), _SOURCE])

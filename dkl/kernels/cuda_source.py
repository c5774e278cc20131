"""The CUDA sources of features and of their sums, for NVRTC or nvcc; SGD and landmarks have their own."""

from __future__ import annotations

# Rows that a thread sums before its sum is added to others.
PARTIAL_ROWS = 256
# Most columns of weights that a thread has sums for; more would not fit in its registers.
WEIGHT_COLUMNS = 8
# Most columns of rows for which a thread computes products with a frequency itself, with as many registers.
MOST_COLUMNS = 32
# Rows for which a thread sums the losses of one model.
LINE_ROWS = 32
# Threads that share a row.
SHARING = 16
# Columns, and rows, of the square of a product matrix that a thread sums: 16 sums for every 8 numbers read.
PRODUCTS_EACH = 4

_WAVE_SUMS = r"""
// One thread a frequency: sum_i S[i, k] (cos, sin)(2 pi z_ij) over a few rows, for a few weight columns at a time. The
// angles, in turns, are given, (n, m), or products of rows (n, COLUMNS) with the frequency, which stays in registers.
extern "C" __global__ void pair_sums(
    const REAL* __restrict__ z, const REAL* __restrict__ W, const REAL* __restrict__ weights,
    double* __restrict__ partial, const int n, const int m, const int K)
{
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    const int first = blockIdx.y * PARTIAL_ROWS;
    const int k0 = blockIdx.z * WEIGHT_COLUMNS;
    if (j >= m) return;
    REAL cosines[WEIGHT_COLUMNS] = {0}, sines[WEIGHT_COLUMNS] = {0};
#if COLUMNS
    REAL w[COLUMNS];
    for (int c = 0; c < COLUMNS; ++c) w[c] = W[(size_t)j * COLUMNS + c];
#endif
    const int stop = min(first + PARTIAL_ROWS, n);
    for (int i = first; i < stop; ++i) {
#if COLUMNS
        REAL turns = 0;
    #if FOURS
        // four numbers a read: all threads read the same ones, and would wait for single ones
        const float4* x = (const float4*)(z + (size_t)i * COLUMNS);
        #pragma unroll
        for (int c = 0; c < COLUMNS; c += 4) {
            const float4 four = x[c / 4];
            turns += four.x * w[c] + four.y * w[c + 1] + four.z * w[c + 2] + four.w * w[c + 3];
        }
    #else
        const REAL* x = z + (size_t)i * COLUMNS;
        #pragma unroll
        for (int c = 0; c < COLUMNS; ++c) turns += x[c] * w[c];
    #endif
#else
        const REAL turns = z[(size_t)i * m + j];
#endif
        const REAL fraction = turns - RINT(turns);
        REAL c, s;
        SINCOSPI(fraction == fraction ? 2 * fraction : (REAL)1, &s, &c);
        #pragma unroll
        for (int k = 0; k < WEIGHT_COLUMNS; ++k) {
            const REAL w = k0 + k < K ? weights[(size_t)i * K + k0 + k] : (REAL)0;
            cosines[k] += w * c;
            sines[k] += w * s;
        }
    }
    double* out = partial + (size_t)blockIdx.y * 2 * K * m;
    for (int k = 0; k < WEIGHT_COLUMNS && k0 + k < K; ++k) {
        out[(size_t)(k0 + k) * m + j] = cosines[k];
        out[(size_t)(K + k0 + k) * m + j] = sines[k];
    }
}
"""

_MAPS = r"""
// One thread a row and a frequency: the cosine of an angle z (n, m) and, with two parts, its sine, by the amplitude of
// the frequency: out (n, parts * m).
extern "C" __global__ void waves(
    const REAL* __restrict__ z, const REAL* __restrict__ amplitudes, REAL* __restrict__ out,
    const int n, const int m, const int parts)
{
    const unsigned number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= (unsigned)n * (unsigned)m) return;
    const unsigned i = number / m, j = number % m;
    REAL c, s;
    SINCOS(z[number], &s, &c);
    REAL* row = out + (size_t)i * parts * m;
    row[j] = c * amplitudes[j];
    if (parts == 2) row[m + j] = s * amplitudes[j];
}

// One thread a row and an atom: the product of steps and hinges of scaled rows (n, d), by the amplitude of the atom:
// out (n, m). A factor of column -1 is 1.
extern "C" __global__ void steps(
    const double* __restrict__ rows, const int* __restrict__ columns, const double* __restrict__ thresholds,
    const int* __restrict__ hinges, const double* __restrict__ high, const double* __restrict__ amplitudes,
    REAL* __restrict__ out, const int n, const int d, const int m, const int factors)
{
    const unsigned number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= (unsigned)n * (unsigned)m) return;
    const unsigned i = number / m, j = number % m;
    double value = 1.0;
    for (int factor = 0; factor < factors; ++factor) {
        const size_t one = (size_t)j * factors + factor;
        const int column = columns[one];
        if (column < 0) continue;
        const double x = rows[(size_t)i * d + column], t = thresholds[one];
        const double above = x > t ? 1.0 : 0.0, top = x > high[column] ? high[column] : x;
        value *= hinges[one] ? above * (top - t) : above;
    }
    out[number] = (REAL)value * (REAL)amplitudes[j];
}
"""

_SCALING = r"""
// One thread a number of rows (n, d): less the centre of its column, times its factor, or where there are knots (d, Q)
// its normal score: as far between the scores of two knots as it lies between these, and for a number that equals tied
// knots the mean of the first and the last of their scores.
extern "C" __global__ void scale(
    const double* __restrict__ X, const double* __restrict__ centers, const double* __restrict__ factors,
    const double* __restrict__ knots, const double* __restrict__ scores, REAL* __restrict__ out,
    const int n, const int d, const int Q)
{
    const unsigned number = blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= (unsigned)n * (unsigned)d) return;
    const unsigned j = number % d;
    const double x = X[number];
    // a column that passes has the factor 1, any other one 0 where there are knots
    if (Q == 0 || factors[j] != 0.0) {
        out[number] = (REAL)((x - centers[j]) * factors[j]);
        return;
    }
    const double* own = knots + (size_t)j * Q;
    int left = 0, right = 0;
    for (int stop = Q; left < stop;) {
        const int middle = (left + stop) / 2;
        if (own[middle] < x) left = middle + 1; else stop = middle;
    }
    for (int stop = Q; right < stop;) {
        const int middle = (right + stop) / 2;
        if (own[middle] <= x) right = middle + 1; else stop = middle;
    }
    left = min(left, Q - 1);
    right = right > 0 ? right - 1 : 0;
    const int below = left > 0 ? left - 1 : 0;
    const double gap = own[left] - own[below];
    double share = (x - own[below]) / (gap > 0.0 ? gap : 1.0);
    // numbers beyond the outermost knots have the score of these
    share = share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
    const double between = scores[below] + share * (scores[left] - scores[below]);
    out[number] = (REAL)(own[left] == x ? 0.5 * (scores[left] + scores[right]) : between);
}
"""

_SCORES = r"""
// GROUP threads a row, in double precision: out (n, g) of features (n, m) and models (g, m + 1), intercepts last.
extern "C" __global__ void scores(
    const REAL* __restrict__ phi, const double* __restrict__ models, double* __restrict__ out,
    const int n, const int m, const int g)
{
    __shared__ double sums[GROUP][GROUP][WEIGHT_COLUMNS];
    const int lane = threadIdx.x % GROUP, place = threadIdx.x / GROUP;
    for (int first = blockIdx.x * GROUP; first < n; first += gridDim.x * GROUP) {
        const int i = first + place;
        for (int k0 = 0; k0 < g; k0 += WEIGHT_COLUMNS) {
            double own[WEIGHT_COLUMNS] = {0};
            for (int j = lane; j < m && i < n; j += GROUP) {
                const double x = phi[(size_t)i * m + j];
                #pragma unroll
                for (int k = 0; k < WEIGHT_COLUMNS; ++k)
                    if (k0 + k < g) own[k] += x * models[(size_t)(k0 + k) * (m + 1) + j];
            }
            for (int k = 0; k < WEIGHT_COLUMNS; ++k) sums[place][lane][k] = own[k];
            __syncthreads();
            for (int k = lane; k < WEIGHT_COLUMNS && k0 + k < g && i < n; k += GROUP) {
                double total = models[(size_t)(k0 + k) * (m + 1) + m];
                for (int other = 0; other < GROUP; ++other) total += sums[place][other][k];
                out[(size_t)i * g + k0 + k] = total;
            }
            __syncthreads();
        }
    }
}
"""

_LINE_LOSSES = r"""
// One thread a model and a few rows, of scores (n, 2 g), which are those at a start and what a whole step adds: losses
// at steps (g, T), summed over these rows; minus the slope (g, n) and what a row counts in the Hessian (g, n), at the
// first step.
extern "C" __global__ void line_losses(
    const double* __restrict__ scores, const double* __restrict__ targets, const double* __restrict__ weights,
    const double* __restrict__ steps, double* __restrict__ partial, double* __restrict__ descent,
    double* __restrict__ counted, const int n, const int g, const int T, const int by_model, const int hinge,
    const int change)
{
    const int number = blockIdx.x * blockDim.x + threadIdx.x;
    const int chunk = number / g, k = number % g;
    const int first = chunk * LINE_ROWS, stop = min(first + LINE_ROWS, n);
    if (first >= n) return;
    double* losses = partial + (size_t)chunk * g * T + (size_t)k * T;
    for (int i = first; i < stop; ++i) {
        const double y = targets[(size_t)i * g + k], w = weights[by_model ? (size_t)i * g + k : (size_t)i];
        const double start = scores[(size_t)i * 2 * g + k], move = scores[(size_t)i * 2 * g + g + k];
        for (int t = 0; t < T; ++t) {
            const double score = start + steps[(size_t)k * T + t] * move;
            double slack = hinge ? 1.0 - y * score : y - score;
            slack = hinge && !(slack > 0.0) ? 0.0 : slack;
            losses[t] += hinge ? w * slack * slack : 0.5 * w * slack * slack;
            if (t) continue;
            descent[(size_t)k * n + i] = hinge ? 2.0 * w * slack * y : w * slack;
            // A row of the squared hinge has curvature where its slack is positive; every row of the squared error has.
            const int now = slack > 0.0 || !hinge, before = change && (y * start < 1.0 || !hinge);
            counted[(size_t)k * n + i] = w * (now - before);
        }
    }
}
"""

_CALIBRATION = r"""
// One thread a model, an inverse temperature a and a few rows, of scores (n, M, K) whose softmax at a z_k = a f_k has
// the mean u and the variance v: the log of the sum of exp(z_k) less z_y, u - z_y and u - z_y + v, of the class y of a
// row, and the same less the mean of z in the place of z_y, by the weights (n, M) of rows.
extern "C" __global__ void calibration(
    const double* __restrict__ scores, const int* __restrict__ codes, const double* __restrict__ weights,
    const double* __restrict__ multipliers, double* __restrict__ partial, const int n, const int M, const int K,
    const int T)
{
    const size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int t = number % T, model = number / T % M;
    const size_t chunk = number / ((size_t)T * M), first = chunk * PARTIAL_ROWS;
    if (first >= n) return;
    const int stop = min((int)first + PARTIAL_ROWS, n);
    const double a = multipliers[t];
    double sums[6] = {0};
    for (int i = first; i < stop; ++i) {
        const double w = weights[(size_t)i * M + model];
        if (w == 0.0) continue;
        const double* f = scores + ((size_t)i * M + model) * K;
        double top = f[0], all = 0.0, total = 0.0, mean = 0.0, variance = 0.0;
        for (int k = 1; k < K; ++k) top = f[k] > top ? f[k] : top;
        for (int k = 0; k < K; ++k) {
            const double share = exp(a * (f[k] - top));
            total += share;
            mean += share * a * f[k];
            all += a * f[k];
        }
        mean /= total;
        for (int k = 0; k < K; ++k) {
            const double gap = a * f[k] - mean;
            variance += exp(a * (f[k] - top)) * gap * gap;
        }
        variance /= total;
        const double log_total = a * top + log(total), expected[2] = {a * f[codes[i]], all / K};
        for (int kind = 0; kind < 2; ++kind) {
            sums[3 * kind] += w * (log_total - expected[kind]);
            sums[3 * kind + 1] += w * (mean - expected[kind]);
            sums[3 * kind + 2] += w * (mean - expected[kind] + variance);
        }
    }
    for (int kind = 0; kind < 6; ++kind) partial[((chunk * M + model) * 6 + kind) * T + t] = sums[kind];
}
"""

_HISTOGRAMS = r"""
// One thread a part of the rows, a parent and a column: the sums (n, width) of the part's rows on which the parent's
// feature and the first of the sums are above 0, by the bin that the row's number in the column lies in.
extern "C" __global__ void histograms(
    const double* __restrict__ rows, const REAL* __restrict__ phi, const double* __restrict__ sums,
    const double* __restrict__ edges, const int* __restrict__ n_edges, const int* __restrict__ parents,
    double* __restrict__ partial, const int n, const int d, const int m, const int bins, const int P, const int width,
    const int part_rows)
{
    const size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int j = number % d, parent = number / d % P;
    const size_t part = number / ((size_t)d * P), first = part * part_rows;
    if (first >= n) return;
    const int stop = min((int)first + part_rows, n), column = parents[parent];
    const double* own = edges + (size_t)j * bins;
    double* out = partial + ((part * P + parent) * d + j) * bins * width;
    for (int i = first; i < stop; ++i) {
        const double* sum = sums + (size_t)i * width;
        if (!(phi[(size_t)i * m + column] > 0) || !(sum[0] > 0.0)) continue;
        const double x = rows[(size_t)i * d + j];
        int low = 0;
        // a comparison with NaN is false, so that a missing value is in the first bin
        for (int high = n_edges[j]; low < high;) {
            const int middle = (low + high) / 2;
            if (x > own[middle]) low = middle + 1; else high = middle;
        }
        for (int k = 0; k < width; ++k) out[low * width + k] += sum[k];
    }
}
"""

_PACKING = r"""
// Entries (j, 0 .. start + j) of a matrix (rows, width), row after row: one thread an entry.
extern "C" __global__ void packed(
    const double* __restrict__ matrix, double* __restrict__ out, const int rows, const int width, const int start)
{
    const size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= (size_t)rows * width) return;
    const size_t j = number / width, i = number % width;
    if (i <= start + j) out[j * start + j * (j + 1) / 2 + i] = matrix[number];
}
"""

_ROW_SUMS = r"""
// One thread a feature, in double precision: sum_i weights[k, i] phi[i, j] over a few rows, for a few k at a time.
extern "C" __global__ void weighted_rows(
    const REAL* __restrict__ phi, const double* __restrict__ weights, double* __restrict__ partial,
    const int n, const int m, const int K)
{
    const int j = blockIdx.x * blockDim.x + threadIdx.x;
    const int first = blockIdx.y * PARTIAL_ROWS;
    const int k0 = blockIdx.z * WEIGHT_COLUMNS;
    if (j >= m) return;
    double own[WEIGHT_COLUMNS] = {0};
    const int stop = min(first + PARTIAL_ROWS, n);
    for (int i = first; i < stop; ++i) {
        const double x = phi[(size_t)i * m + j];
        #pragma unroll
        for (int k = 0; k < WEIGHT_COLUMNS; ++k)
            if (k0 + k < K) own[k] += weights[(size_t)(k0 + k) * n + i] * x;
    }
    double* out = partial + (size_t)blockIdx.y * K * m;
    for (int k = 0; k < WEIGHT_COLUMNS && k0 + k < K; ++k) out[(size_t)(k0 + k) * m + j] = own[k];
}
"""

_PICKED = r"""
// GROUP^2 threads a square of the matrix sum_i weights[i] phi[i, start + j] phi[i, k], (p, q), which `out` grows by,
// over the first `count` rows of `order` alone: how many these are the host need not know. Squares beyond the diagonal
// are left out. Of GROUP rows products are summed in the precision of the features, and these sums in double precision.
extern "C" __global__ void picked_products(
    const REAL* __restrict__ phi, const double* __restrict__ weights, const int* __restrict__ order,
    const int* __restrict__ count, double* __restrict__ out, const int m, const int start, const int p, const int q)
{
    __shared__ REAL left[GROUP][EACH * GROUP], right[GROUP][EACH * GROUP];
    const int lane = threadIdx.x % GROUP, place = threadIdx.x / GROUP, side = EACH * GROUP, n = count[0];
    for (int j0 = blockIdx.y * side; j0 < p; j0 += gridDim.y * side)
    for (int k0 = blockIdx.x * side; k0 < q && k0 <= start + j0 + side - 1; k0 += gridDim.x * side) {
        double total[EACH][EACH] = {{0}};
        for (int first = 0; first < n; first += GROUP) {
            const bool is_row = first + place < n;
            const size_t row = is_row ? order[first + place] : 0;
            const REAL weight = is_row ? (REAL)weights[row] : (REAL)0;
            #pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const int column = lane + e * GROUP;
                left[place][column] = is_row && j0 + column < p ? weight * phi[row * m + start + j0 + column] : (REAL)0;
                right[place][column] = is_row && k0 + column < q ? phi[row * m + k0 + column] : (REAL)0;
            }
            __syncthreads();
            REAL sums[EACH][EACH] = {{0}};
            for (int r = 0; r < GROUP; ++r)
                #pragma unroll
                for (int a = 0; a < EACH; ++a)
                    #pragma unroll
                    for (int b = 0; b < EACH; ++b)
                        sums[a][b] += left[r][place + a * GROUP] * right[r][lane + b * GROUP];
            for (int a = 0; a < EACH; ++a)
                for (int b = 0; b < EACH; ++b) total[a][b] += sums[a][b];
            __syncthreads();
        }
        for (int a = 0; a < EACH; ++a)
            for (int b = 0; b < EACH; ++b) {
                const int j = j0 + place + a * GROUP, k = k0 + lane + b * GROUP;
                if (j < p && k < q) out[(size_t)j * q + k] += total[a][b];
            }
    }
}
"""

_DISTANCES = r"""
// One thread for each row and landmark: the sum of |x - z| over the columns, or the square root of the sum of squares.
// Differences keep the digits of small distances, which products would lose.
extern "C" __global__ void distances(
    const REAL* __restrict__ X, const REAL* __restrict__ Z, REAL* __restrict__ out,
    const int n, const int l, const int d, const int squared)
{
    const size_t number = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (number >= (size_t)n * l) return;
    const size_t i = number / l, j = number % l;
    REAL sum = 0;
    for (int c = 0; c < d; ++c) {
        const REAL gap = X[i * d + c] - Z[(size_t)c * l + j];
        sum += squared ? gap * gap : gap < 0 ? -gap : gap;
    }
    out[number] = squared ? (REAL)sqrt(sum) : sum;
}
"""

_SOURCES = {
    "pair_sums": _WAVE_SUMS,
    "waves": _MAPS,
    "steps": _MAPS,
    "scale": _SCALING,
    "scores": _SCORES,
    "line_losses": _LINE_LOSSES,
    "calibration": _CALIBRATION,
    "histograms": _HISTOGRAMS,
    "packed": _PACKING,
    "weighted_rows": _ROW_SUMS,
    "picked_products": _PICKED,
    "distances": _DISTANCES,
}
# The names in C of a type and of its functions: to round, and for cosines and sines of radians and of half turns.
_IN_C = {
    "float32": {"REAL": "float", "RINT": "rintf", "SINCOS": "sincosf", "SINCOSPI": "sincospif"},
    "float64": {"REAL": "double", "RINT": "rint", "SINCOS": "sincos", "SINCOSPI": "sincospi"},
}


def kernel_source(name: str, dtype: str = "float64", n_weights: int = 1, n_columns: int = 0) -> str:
    """The source of the kernel of a name, for NVRTC or nvcc.

    Parameters
    ----------
    name : str
    dtype : {"float32", "float64"}
        Of features or scaled rows; losses, and matrices that are packed, are in double precision.
    n_weights : int
        Weights of a row, or models.
    n_columns : int
        Of "pair_sums" the columns of rows, or 0 for angles.
    """
    given = {
        **_IN_C[dtype],
        "COLUMNS": n_columns,
        "FOURS": int(dtype == "float32" and n_columns % 4 == 0),
        "GROUP": SHARING,
        "EACH": PRODUCTS_EACH,
        "LINE_ROWS": LINE_ROWS,
        "PARTIAL_ROWS": PARTIAL_ROWS,
        "WEIGHT_COLUMNS": columns_at_once(n_weights),
    }
    source = _SOURCES[name]
    return "\n".join([*(f"#define {macro} {value}" for macro, value in given.items() if macro in source), source])


def columns_at_once(n_weights: int) -> int:
    """Columns of weights that a thread has sums for: a power of two, so that few kernels serve all numbers."""
    return min(WEIGHT_COLUMNS, 1 << max(n_weights - 1, 0).bit_length())

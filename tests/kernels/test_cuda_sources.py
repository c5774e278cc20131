"""The player of CUDA sources: launches from several threads at once, as the tasks of a pass make them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tests.kernels.cuda_sources import host_kernel, played

SOURCE = """
extern "C" __global__ void squares(const double* x, double* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * x[i];
}
"""


@played
def test_launches_from_several_threads_do_not_disturb_each_other() -> None:
    kernel, threads = host_kernel(SOURCE, "squares"), 32

    def wrong(number: int) -> int:
        n = 4_000 + 97 * number
        x, out = np.arange(n) + float(number), np.zeros(n)
        kernel((-(-n // threads),), (threads,), [x, out, np.int32(n)])
        return int(np.count_nonzero(out != x * x))

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(wrong, range(200))) == 0

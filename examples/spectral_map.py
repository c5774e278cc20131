"""An optimised feature map, and what it saves: one kernel on the circle, three laws of features for it.

    python examples/spectral_map.py

The kernel has eigenfunctions cos(2 pi i x), sin(2 pi i x) with eigenvalues i^-2. Fourier features draw i from these.
The spectral map of Sun, Gilbert & Tewari 2018, section 2.1, draws omega uniformly on the circle and takes
phi(x; omega) = sum_i sqrt(lambda_i) e_i(x) e_i(omega): all its leverage scores are alike (assumption 2), so plain draws
of it are the best there are. It needs the eigenfunctions, which data rarely give; drawing Fourier features in
proportion to their leverage comes as far without. The table shows, over the unit ball of the kernel's functions, the
largest of min over b of |f - Phi b|^2 + mu |b|^2, over mu: 1 at best; above 4 a draw of features has failed.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from dkl.bounds import coherence_ratio, feature_count
from dkl.methods.leverage.driver import resample

DEGREES, N_ROWS, POOL, MU = 60, 240, 3_000, 3e-3
DRAWS = (20, 50, 100, 200, 500)


def eigenfunctions(x: np.ndarray) -> np.ndarray:
    """Cosines and sines of every degree, (n, 2, DEGREES), of mean square 1."""
    angles = 2.0 * np.pi * np.outer(x, np.arange(1, DEGREES + 1))
    return np.sqrt(2.0) * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def pools(seed: int) -> dict[str, np.ndarray]:
    """Features of both maps at evenly spaced x, divided by sqrt(n M): (columns a feature, n, M)."""
    rng = np.random.default_rng(seed)
    e = eigenfunctions(np.arange(N_ROWS) / N_ROWS)
    eigenvalues = 1.0 / np.arange(1, DEGREES + 1) ** 2
    degrees = rng.choice(DEGREES, POOL, p=eigenvalues / eigenvalues.sum())
    fourier = np.sqrt(eigenvalues.sum()) * e[:, :, degrees].transpose(1, 0, 2)
    spectral = np.einsum("npi,i,mpi->nm", e, np.sqrt(eigenvalues), eigenfunctions(rng.random(POOL)))[None]
    return {"Fourier": fourier / np.sqrt(N_ROWS * POOL), "spectral": spectral / np.sqrt(N_ROWS * POOL)}


def kernel(features: np.ndarray) -> np.ndarray:
    return sum(part @ part.T for part in features)


def leverage(features: np.ndarray) -> np.ndarray:
    """The scores of the dense formula, through the kernel matrix."""
    return np.sum(features * np.linalg.solve(kernel(features) + MU * np.eye(N_ROWS), features), axis=(0, 1))


def worst_error(features: np.ndarray, scores: np.ndarray, n_draws: int, seed: int) -> float:
    """Over mu, after draws in proportion to `scores`."""
    choice = resample(scores, np.arange(POOL), n_draws, seed)
    kept = features[:, :, choice.index] * choice.amplitudes * np.sqrt(POOL)
    return float(eigh(kernel(features), kernel(kept) + MU * np.eye(N_ROWS), eigvals_only=True)[-1])


def run(seed: int = 0) -> dict[str, list[float]]:
    """The errors of each law at every number of draws; prints them beside the counts that theory asks for."""
    found: dict[str, list[float]] = {}
    print(f"{'draws':>26}" + "".join(f"{n:>8}" for n in DRAWS) + "   by theory")
    for name, features in pools(seed).items():
        scores = leverage(features)
        arms = {f"{name}, plain": np.ones(POOL)} | ({f"{name}, by leverage": scores} if name == "Fourier" else {})
        for arm, law in arms.items():
            coherence = coherence_ratio(scores) if "plain" in arm else 1.0
            count = feature_count(scores.sum(), coherence=coherence).value
            found[arm] = [worst_error(features, law, n, seed) for n in DRAWS]
            print(f"{arm:>26}" + "".join(f"{value:8.2f}" for value in found[arm]) + f"{count:>12,.0f}")
    return found


if __name__ == "__main__":
    run()

"""Synthetic rows of known geometry: the toy sets of the papers, for classification or regression."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def windmill(
    n_rows: int = 2_000, *, sails: int = 4, twist: float = 1.35, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows in the unit disc, labelled by twisted sails that alternate between two classes.

    The paper publishes no generator. This one is calibrated on its baseline: on 2,000 rows and 50,000 test rows an SVM
    with the Gaussian kernel, C = 1 and the median distance for a bandwidth (the paper's rules) is right on 92.1 %.

    Parameters
    ----------
    n_rows : int
    sails : int
        Even; half of them belong to each class.
    twist : float
        Radians of phase by which a sail is ahead at the rim of its phase at the centre.
    seed : int

    Returns
    -------
    X : ndarray of shape (n_rows, 2), float64
        Uniform in the disc.
    y : ndarray of shape (n_rows,), int64
        -1 or +1.

    Raises
    ------
    ValueError
        If `sails` is odd or below 2.

    Examples
    --------
    >>> from dkl.testing.synthetic import windmill
    >>> X, y = windmill(100)
    >>> X.shape, sorted(set(y.tolist()))
    ((100, 2), [-1, 1])
    """
    _check_even("sails", sails)
    generator = np.random.default_rng(seed)
    # The root of a uniform number is the radius of a point that is uniform in the disc.
    radius, angle = np.sqrt(generator.random(n_rows)), generator.uniform(0.0, 2.0 * np.pi, n_rows)
    X = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    # A sail is half a period of the sine; towards the rim its phase is ahead by `twist`.
    return X, _signs(np.sin(sails / 2 * angle + twist * radius))


def sphere_checkerboard(
    n_rows: int = 2_000, *, bands: int = 6, sectors: int = 8, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows on the unit sphere of R^3, labelled by a checkerboard of bands of latitude and sectors of longitude.

    The paper publishes no generator. This one is calibrated on its baseline: on 2,000 rows and 50,000 test rows an SVM
    with the arc-cosine kernel of order 0 saturates (C = 100 and above) at 95.0 %, the paper's at 95.1.

    Parameters
    ----------
    n_rows : int
    bands : int
        The number of bands, of equal height in latitude.
    sectors : int
        The number of sectors, even, of equal width in longitude.
    seed : int

    Returns
    -------
    X : ndarray of shape (n_rows, 3), float64
        Uniform on the sphere.
    y : ndarray of shape (n_rows,), int64
        -1 or +1.

    Raises
    ------
    ValueError
        If `sectors` is odd or below 2.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.testing.synthetic import sphere_checkerboard
    >>> X, y = sphere_checkerboard(100)
    >>> bool(np.allclose(np.linalg.norm(X, axis=1), 1.0))
    True
    """
    _check_even("sectors", sectors)
    # The direction of a normal vector is uniform on the sphere.
    X = np.random.default_rng(seed).standard_normal((n_rows, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    colatitude, longitude = np.arccos(X[:, 2]), np.arctan2(X[:, 1], X[:, 0])
    return X, _signs(np.sin(bands * colatitude) * np.sin(sectors / 2 * longitude))


def disc_and_annulus(
    n_rows: int = 1_000, *, n_columns: int = 2, noise: float = 0.1, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a disc, labelled -1, and of an annulus around it, labelled +1, some labels flipped.

    Half of the rows lie in the disc of radius 0.9, half in the annulus of radii 1.1 to 2; radii are uniform (not
    areas), and so are directions. The best accuracy is 1 - noise, that of the unit circle. In more columns: a ball and
    a shell around it.

    Parameters
    ----------
    n_rows : int
    n_columns : int
        At least 2.
    noise : float
        The share of flipped labels, below 1/2.
    seed : int

    Returns
    -------
    X : ndarray of shape (n_rows, n_columns), float64
    y : ndarray of shape (n_rows,), int64
        -1 or +1.

    Raises
    ------
    ValueError
        If there are fewer than 2 columns, or `noise` is not in [0, 1/2).

    References
    ----------
    Sun, Gilbert & Tewari 2018, section 4 and figure 3.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.testing.synthetic import disc_and_annulus
    >>> X, y = disc_and_annulus(100, noise=0.0)
    >>> bool(np.all((np.linalg.norm(X, axis=1) > 1.0) == (y > 0)))
    True
    """
    if n_columns < 2:
        raise ValueError(f"disc_and_annulus: n_columns is {n_columns}; a disc has at least 2")
    if not 0.0 <= noise < 0.5:
        raise ValueError(f"disc_and_annulus: noise is {noise}; a share of flipped labels is in [0, 0.5)")
    generator = np.random.default_rng(seed)
    # Exactly half of the rows are outside, in random order.
    outside = np.arange(n_rows) % 2 == 1
    generator.shuffle(outside)
    directions = generator.standard_normal((n_rows, n_columns))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = np.where(outside, generator.uniform(1.1, 2.0, n_rows), generator.uniform(0.0, 0.9, n_rows))
    # No model can predict which labels are flipped, so that the best accuracy is 1 - noise.
    flipped = generator.random(n_rows) < noise
    return radii[:, None] * directions, _signs(np.where(outside != flipped, 1.0, -1.0))


def additive(n_rows: int = 2_000, *, n_columns: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A regression target of two columns with separate effects and a product of two others; further columns are noise.

    ``y = sin(2 x_0) + x_1^2 / 2 + 1.5 sin(x_2) sin(x_3) + noise`` of deviation 0.1.

    Parameters
    ----------
    n_rows : int
    n_columns : int
        At least 4.
    seed : int

    Returns
    -------
    X : ndarray of shape (n_rows, n_columns), float64
        Standard normal.
    y : ndarray of shape (n_rows,), float64

    Raises
    ------
    ValueError
        If there are fewer than 4 columns.
    """
    if n_columns < 4:
        raise ValueError(f"additive: n_columns is {n_columns}; the targets depend on 4 columns, so give at least 4")
    generator = np.random.default_rng(seed)
    X = generator.standard_normal((n_rows, n_columns))
    noise = 0.1 * generator.standard_normal(n_rows)
    return X, sum(effect(X) for effect in ADDITIVE_EFFECTS.values()) + noise


ADDITIVE_EFFECTS: dict[tuple[int, ...], Callable[[np.ndarray], np.ndarray]] = {
    (0,): lambda X: np.sin(2.0 * X[:, 0]),
    (1,): lambda X: 0.5 * X[:, 1] ** 2,
    (2, 3): lambda X: 1.5 * np.sin(X[:, 2]) * np.sin(X[:, 3]),
}


def _check_even(name: str, number: int) -> None:
    """Raise ValueError unless as many sectors belong to one class as to the other."""
    if number < 2 or number % 2:
        raise ValueError(f"{name} is {number}; two classes that alternate around a circle need an even number")


def _signs(values: np.ndarray) -> np.ndarray:
    """Labels -1 and +1, int64."""
    return np.where(values > 0.0, 1, -1)

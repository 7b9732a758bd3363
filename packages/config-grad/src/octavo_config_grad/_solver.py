"""Small dense problems on the cosine matrix: least squares and minimum-norm points, in NumPy float64.

NumPy rather than torch because the matrices are m x m with m of a few: the overhead of a call decides the cost. The
results are exact to the conditioning of the cosine matrix and do not depend on the number of parameters.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64
from scipy.linalg import get_lapack_funcs

__all__ = [
    "cosine_matrix",
    "default_rtol",
    "least_squares_coefficients",
    "minimum_norm_coefficients",
    "numerical_rank",
]

(_posv,) = get_lapack_funcs(("posv",), dtype=np.float64)

EPS = float(np.finfo(np.float64).eps)
# Squared distance of a unit gradient from the span of the earlier ones above which Cholesky alone is trusted.
SAFE_PIVOT = 1e-6


def default_rtol(size: int) -> float:
    """Relative eigenvalue cut for a matrix of ``size`` unit gradients.

    Args:
        size: Number of gradients, m.

    Returns:
        ``10 m eps(float64)``, independent of the number of parameters.
    """
    return 10.0 * max(size, 1) * EPS


def cosine_matrix(
    gramian: Float64[np.ndarray, "losses losses"],
) -> tuple[Float64[np.ndarray, " losses"], Bool[np.ndarray, " losses"], Float64[np.ndarray, "losses losses"]]:
    """Split a Gramian into gradient norms and pairwise cosines.

    Args:
        gramian: Dot products of the gradients, finite.

    Returns:
        Norms, the mask of the non-zero gradients, and the cosine matrix; rows and columns of zero gradients are zero.
    """
    norms = np.sqrt(np.maximum(gramian.diagonal(), 0.0))
    nonzero = norms > 0.0
    inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=nonzero)
    cosines = gramian * inverse[:, None] * inverse
    np.minimum(cosines, 1.0, out=cosines)
    np.maximum(cosines, -1.0, out=cosines)
    cosines.flat[:: len(norms) + 1] = nonzero
    return norms, nonzero, cosines


def numerical_rank(cosines: Float64[np.ndarray, "losses losses"], rtol: float) -> int:
    """Number of linearly independent gradients.

    Args:
        cosines: Cosine matrix of the non-zero gradients.
        rtol: Eigenvalues below ``rtol`` times the largest count as zero.

    Returns:
        The rank, 0 for an empty matrix.
    """
    if len(cosines) == 0:
        return 0
    factor, _, failed = _posv(cosines, np.ones(len(cosines)))
    if not failed and factor.diagonal().min() ** 2 > SAFE_PIVOT:
        return len(cosines)
    eigenvalues = np.linalg.eigvalsh(cosines)
    return int(np.count_nonzero(eigenvalues > rtol * eigenvalues[-1]))


def least_squares_coefficients(
    cosines: Float64[np.ndarray, "losses losses"], weights: Float64[np.ndarray, " losses"], rtol: float
) -> tuple[Float64[np.ndarray, " losses"], int]:
    """Coefficients ``a = R^+ w`` of the minimum-norm least-squares solution ``x = U^T a`` of ``U x = w``.

    Args:
        cosines: Cosine matrix R of non-zero gradients.
        weights: Direction weights w, positive.
        rtol: Eigenvalues below ``rtol`` times the largest count as zero.

    Returns:
        The coefficients and the rank; the coefficients are exactly zero where ``w`` is orthogonal to the range of R.
    """
    size = len(weights)
    factor, solution, failed = _posv(cosines, weights)
    if not failed and factor.diagonal().min() ** 2 > SAFE_PIVOT:
        return solution, size
    eigenvalues, vectors = np.linalg.eigh(cosines)
    kept = eigenvalues > rtol * eigenvalues[-1]
    vectors = vectors[:, kept]
    projected = weights @ vectors
    # Rounding leaves about m eps of w in a range that is orthogonal to it; dividing by it would invent a direction.
    if np.linalg.norm(projected) <= default_rtol(size) * np.linalg.norm(weights):
        return np.zeros(size), int(kept.sum())
    return vectors @ (projected / eigenvalues[kept]), int(kept.sum())


def minimum_norm_coefficients(
    cosines: Float64[np.ndarray, "losses losses"], weights: Float64[np.ndarray, " losses"]
) -> tuple[Float64[np.ndarray, " losses"], bool]:
    """Coefficients ``a >= 0`` of the direction ``x = U^T a`` with the largest ``min_i cos(g_i, x) / w_i``.

    ``x`` is parallel to the point of smallest norm in the convex hull of ``u_i / w_i``, and scaled so that
    ``u_i . x >= w_i`` with equality where ``a_i > 0``.

    Args:
        cosines: Cosine matrix R of non-zero gradients.
        weights: Direction weights w, positive.

    Returns:
        The coefficients, and whether zero lies in the hull; they are all zero then.

    Source:
        Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23: the point of smallest norm is the
        non-negative least-squares solution of the augmented system ``[U^T; w^T] a = [0; 1]``, always solvable; where
        zero is outside the hull, ``min a^T R a / 2 - w^T a`` over ``a >= 0`` refines it.
    """
    largest = weights.max()
    weights = weights / largest
    size = len(weights)
    bounded = _nonnegative_quadratic(cosines + np.outer(weights, weights), weights, np.zeros(size))
    if bounded @ cosines @ bounded <= default_rtol(size) * bounded.sum() ** 2:
        return np.zeros(size), True
    return largest * _nonnegative_quadratic(cosines, weights, bounded), False


def _nonnegative_quadratic(
    matrix: Float64[np.ndarray, "losses losses"],
    linear: Float64[np.ndarray, " losses"],
    start: Float64[np.ndarray, " losses"],
) -> Float64[np.ndarray, " losses"]:
    """Active-set minimiser of ``a^T M a / 2 - c^T a`` over ``a >= 0``, for a bounded problem with M semidefinite."""
    size = len(linear)
    magnitudes = np.abs(matrix)
    solution, passive = start, start > 0.0
    # Rounding can let a coefficient enter that would at once be negative; it waits until another one has moved.
    refused = np.zeros(size, dtype=bool)
    entering = None
    for _ in range(10 * size):
        solution, passive = _minimise_on_face(matrix, linear, solution, passive)
        if entering is not None and not passive[entering]:
            refused[entering] = True
        else:
            refused[:] = False
        noise = default_rtol(size) * (linear + magnitudes @ solution)
        ascent = linear - matrix @ solution - noise
        ascent[passive | refused] = -1.0
        entering = int(ascent.argmax())
        if ascent[entering] <= 0.0:
            break
        passive[entering] = True
    return solution


def _minimise_on_face(
    matrix: Float64[np.ndarray, "losses losses"],
    linear: Float64[np.ndarray, " losses"],
    solution: Float64[np.ndarray, " losses"],
    passive: Bool[np.ndarray, " losses"],
) -> tuple[Float64[np.ndarray, " losses"], Bool[np.ndarray, " losses"]]:
    """Minimise over the passive coefficients, dropping those that would turn negative on the way."""
    passive = passive.copy()
    while passive.any():
        target = np.zeros_like(solution)
        # The block of an active set is regular; a wider cut than its rounding error would bend the path.
        target[passive], _ = least_squares_coefficients(
            matrix[np.ix_(passive, passive)], linear[passive], EPS * np.count_nonzero(passive)
        )
        leaving = passive & (target <= 0.0)
        if not leaving.any():
            return target, passive
        steps = np.full_like(solution, np.inf)
        np.divide(solution, solution - target, out=steps, where=leaving & (solution > 0.0))
        steps[leaving & (solution <= 0.0)] = 0.0
        first = int(steps.argmin())
        solution = solution + steps[first] * (target - solution)
        passive[first] = False
        passive &= ~leaving | (solution > 0.0)
        solution = np.where(passive, solution, 0.0)
    return np.zeros_like(solution), passive

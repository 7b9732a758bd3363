"""Projection onto polytopes by a finite active-set method, and their Chebyshev centres.

The least-distance problem ``min |y| s.t. G y <= h`` is a non-negative least-squares problem (Lawson and Hanson, Solving
Least Squares Problems, chapter 23). Its positive components name the active rows; the solution is then computed afresh
from them, which gives it to rounding accuracy.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import linprog, nnls
from torch import Tensor

from octavo_aram.constraints._dual_search import clip
from octavo_aram.constraints._empty import EmptySetError
from octavo_aram.constraints._interior_point import project_pieces
from octavo_aram.constraints.base import ConvexPieces

__all__ = ["chebyshev_center", "project_polytope"]

_FEASIBLE = 1e-10
_WIDTH = 1e-12
# Violations in the user's units that are left as they are.
_ENOUGH = 1e-8


def project_polytope(
    point: Float[Tensor, "batch d"], matrix: Float[Tensor, "batch rows d"], bound: Float[Tensor, "batch rows"]
) -> tuple[Float[Tensor, "batch d"], int]:
    """Project onto ``{x in [-1, 1]^d : matrix x <= bound}``.

    Args:
        point: Points to project.
        matrix: Left-hand sides.
        bound: Right-hand sides.

    Returns:
        The nearest feasible points, and how many rows needed the active-set method.

    Raises:
        EmptySetError: If a polytope is empty.

    Source:
        Table of constraints, NSFnet (linear inequalities on link loads).
    """
    clipped = clip(point, -1.0, 1.0)
    with torch.no_grad():
        violated = (torch.einsum("bmd,bd->bm", matrix, clipped) > bound).any(-1)
        rows = violated.nonzero()[:, 0]
    if len(rows) == 0:
        return clipped, 0
    points, matrices, bounds = (x[rows].detach().cpu().numpy() for x in (point, matrix, bound))
    solutions = np.empty_like(points)
    tangents = np.empty((*points.shape, points.shape[-1])) if point.requires_grad else None
    box = np.concatenate([np.eye(points.shape[-1]), -np.eye(points.shape[-1])])
    for i, (start, left, right) in enumerate(zip(points, matrices, bounds, strict=True)):
        sides, limits, norms = _normalised(left, right, int(rows[i]))
        sides, limits = np.concatenate([sides, box]), np.concatenate([limits, np.ones(len(box))])
        x, active = _nearest(start, sides, limits, int(rows[i]), float(norms.max(initial=1.0)))
        solutions[i] = x
        if tangents is not None:
            normals = sides[active]
            tangents[i] = np.eye(len(start)) - np.linalg.pinv(normals) @ normals
    result = torch.as_tensor(solutions, dtype=point.dtype, device=point.device)
    if tangents is not None:
        free = torch.as_tensor(tangents, dtype=point.dtype, device=point.device)
        moved = point[rows]
        result = result + torch.einsum("bij,bj->bi", free, moved - moved.detach())
    return clipped.index_put((rows,), result), len(rows)


def _normalised(matrix: np.ndarray, bound: np.ndarray, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of norm 1 that bind somewhere in the box, their limits, and the norms."""
    largest = np.abs(matrix).max(1, initial=0.0)
    nonzero = largest > 0
    if (bound[~nonzero] < 0).any():
        raise _empty(row)
    # By the largest entry first: squares of huge or tiny numbers overflow or vanish.
    largest = largest[nonzero]
    unit = matrix[nonzero] / largest[:, None]
    with np.errstate(over="ignore"):
        limits = bound[nonzero] / largest
    norms = np.linalg.norm(unit, axis=1)
    binding = limits < np.abs(unit).sum(1) * (1 + 1e-9)
    sides, limits, norms, largest = unit[binding], limits[binding], norms[binding], largest[binding]
    if (limits < -np.abs(sides).sum(1) * (1 + 1e-9)).any():
        raise _empty(row)
    return sides / norms[:, None], limits / norms, norms * largest


def _nearest(
    start: np.ndarray, sides: np.ndarray, limits: np.ndarray, row: int, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Nearest point of ``sides x <= limits`` and the active rows; ``largest`` is the largest norm that rows had."""
    best = _within(start, sides, limits, row, _WIDTH)
    # In units of huge rows the width is much; where they leave a point without it, take that.
    for width in (1e-2 * _WIDTH, 0.0):
        if largest * (sides @ best[0] - limits).max() <= _ENOUGH:
            break
        try:
            other = _within(start, sides, limits, row, width)
        except EmptySetError:
            break
        if (sides @ other[0] - limits).max() < (sides @ best[0] - limits).max():
            best = other
    return best


def _within(
    start: np.ndarray, sides: np.ndarray, limits: np.ndarray, row: int, width: float
) -> tuple[np.ndarray, np.ndarray]:
    # A width far above rounding keeps thin sets (pairs of opposite rows) from being found empty.
    limits = limits + width * (1 + np.abs(limits))
    excess = sides @ start - limits
    scale = excess.max()
    if scale <= 0:
        return start, np.zeros(len(limits), bool)
    system = np.concatenate([-sides.T, excess[None] / scale])
    target = np.zeros(len(system))
    target[-1] = 1
    try:
        multipliers, residual_norm = nnls(system, target, maxiter=30 * len(limits))
    except RuntimeError:
        # The active-set method cycles on rare degenerate rows; the interior-point method does not.
        rows = ConvexPieces(inequality=torch.as_tensor(sides)[None], inequality_bound=torch.as_tensor(limits)[None])
        solution = project_pieces(torch.as_tensor(start)[None], rows)[0].numpy()
        return solution, sides @ solution > limits - 1e-8
    residual = system @ multipliers - target
    if residual_norm <= 1e-9 or -residual[-1] <= 1e-16:
        raise _empty(row)
    solution = start - scale * residual[:-1] / residual[-1]
    active = multipliers > 0
    # Minimum-norm step onto the active faces: exact once they are known.
    exact = start - np.linalg.lstsq(sides[active], excess[active], rcond=1e-12)[0]
    if (sides @ exact - limits).max() <= max(_FEASIBLE, (sides @ solution - limits).max()):
        solution = exact
    if (sides @ solution - limits).max() > 1e-6 * max(1.0, scale):
        raise _empty(row)
    return solution, active


def _empty(row: int) -> EmptySetError:
    return EmptySetError(
        "the feasible set is empty: the linear inequalities and the box [-1, 1]^d have no common point",
        row,
        "loosen the bounds",
    )


def chebyshev_center(
    matrix: Float[np.ndarray, "rows d"], bound: Float[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, " d"], float]:
    """Find the centre and radius of the largest ball within ``{x in [-1, 1]^d : matrix x <= bound}``.

    Args:
        matrix: Left-hand sides.
        bound: Right-hand sides.

    Returns:
        The centre and the radius, 0 for a polytope without interior.

    Raises:
        EmptySetError: If the polytope is empty.

    Source:
        Beyond the paper: the interior point of alpha-projection.
    """
    dim = matrix.shape[1]
    matrix, bound, _ = _normalised(matrix, bound, 0)
    norms = np.ones(len(matrix))
    left = np.concatenate([matrix, np.eye(dim), -np.eye(dim)])
    left = np.concatenate([left, np.concatenate([norms, np.ones(2 * dim)])[:, None]], axis=1)
    right = np.concatenate([bound, np.ones(2 * dim)])
    solved = linprog(
        np.eye(dim + 1)[-1] * -1.0, A_ub=left, b_ub=right, bounds=[(None, None)] * dim + [(0, None)], method="highs"
    )
    if solved.x is None:
        raise EmptySetError(
            "the feasible set is empty: the linear inequalities and the box [-1, 1]^d have no common point; "
            "loosen the bounds"
        )
    return solved.x[:-1].clip(-1, 1), float(solved.x[-1])

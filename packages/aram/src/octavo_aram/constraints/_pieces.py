"""Convex sets as linear and quadratic pieces: joined, boxed, scaled."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from octavo_aram.constraints.base import ConvexPieces

__all__ = ["merge_pieces", "scaled_pieces", "with_box", "with_equations"]

_SMALLEST_BOUND = 1e-12
# Opposite rows whose limits leave less than this between them are an equation.
_WIDTH = 1e-10


def merge_pieces(parts: list[ConvexPieces], dim: int) -> ConvexPieces:
    """Join the pieces of several sets into those of their intersection; lifted variables stay apart.

    Args:
        parts: Pieces of each set.
        dim: Number of action components.

    Returns:
        The pieces of the intersection.
    """
    lifted = sum(part.lifted for part in parts)
    columns: dict[str, list[Tensor]] = {"inequality": [], "equality": []}
    bounds: dict[str, list[Tensor]] = {"inequality": [], "equality": []}
    start = dim
    for part in parts:
        for name in columns:
            matrix, bound = getattr(part, name), getattr(part, f"{name}_bound")
            if matrix is None or bound is None:
                continue
            wide = matrix.new_zeros(*matrix.shape[:2], dim + lifted)
            wide[..., :dim] = matrix[..., :dim]
            wide[..., start : start + part.lifted] = matrix[..., dim:]
            columns[name].append(wide)
            bounds[name].append(bound)
        start += part.lifted
    return ConvexPieces(
        lifted,
        torch.cat(columns["inequality"], 1) if columns["inequality"] else None,
        torch.cat(bounds["inequality"], 1) if bounds["inequality"] else None,
        torch.cat(columns["equality"], 1) if columns["equality"] else None,
        torch.cat(bounds["equality"], 1) if bounds["equality"] else None,
        tuple(quadratic for part in parts for quadratic in part.quadratics),
    )


def with_box(pieces: ConvexPieces, batch: int, dim: int, like: Tensor) -> ConvexPieces:
    """Add the box [-1, 1]^d.

    Args:
        pieces: Pieces of a set.
        batch: Number of states.
        dim: Number of action components.
        like: Tensor whose dtype and device to use.

    Returns:
        The pieces with the 2 d inequalities of the box.
    """
    eye = torch.eye(dim, dtype=like.dtype, device=like.device)
    sides = torch.cat([eye, -eye]).expand(batch, 2 * dim, dim)
    box = ConvexPieces(inequality=sides, inequality_bound=sides.new_ones(batch, 2 * dim))
    return merge_pieces([pieces, box], dim)


def scaled_pieces(pieces: ConvexPieces) -> ConvexPieces:
    """Write the same set with rows of norm 1 and quadratics with bound 1, whatever the units were.

    Args:
        pieces: The set.

    Returns:
        The pieces.
    """
    sides, limits = pieces.inequality, pieces.inequality_bound
    if sides is not None and limits is not None:
        norms = sides.norm(dim=-1)
        norms = torch.where(norms > 0, norms, 1.0)
        sides, limits = sides / norms[..., None], limits / norms
    quadratics = []
    for q, c, r in pieces.quadratics:
        unit = r.clamp(min=_SMALLEST_BOUND)
        quadratics.append((q / (unit[:, None, None] if unit.ndim else unit), c, r / unit))
    return replace(pieces, inequality=sides, inequality_bound=limits, quadratics=tuple(quadratics))


def with_equations(pieces: ConvexPieces) -> ConvexPieces:
    """Write the same set with pairs of opposite rows as equations: they leave a method's slacks no room.

    Args:
        pieces: The set.

    Returns:
        The pieces.
    """
    sides, limits = pieces.inequality, pieces.inequality_bound
    if sides is None or limits is None:
        return pieces
    opposite = (sides @ sides.mT < -1 + 1e-14) & ((limits[:, :, None] + limits[:, None, :]).abs() <= _WIDTH)
    if not opposite.any():
        return pieces
    paired, first = opposite.any(2), opposite.triu().any(2)
    columns = first.any(0).nonzero()[:, 0]
    # Where a pair is none at a state, its equation is void there.
    equations, levels = sides[:, columns] * first[:, columns, None], limits[:, columns] * first[:, columns]
    if pieces.equality is not None and pieces.equality_bound is not None:
        equations = torch.cat([pieces.equality, equations], 1)
        levels = torch.cat([pieces.equality_bound, levels], 1)
    return replace(
        pieces,
        inequality=sides * ~paired[..., None],
        inequality_bound=torch.where(paired, 1.0, limits),
        equality=equations,
        equality_bound=levels,
    )

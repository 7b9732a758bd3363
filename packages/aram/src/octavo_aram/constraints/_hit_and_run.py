"""Hit-and-run: random walks whose law tends to the uniform one on a set known by its violation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

if TYPE_CHECKING:
    from octavo_aram.constraints.base import Constraint

__all__ = ["hit_and_run_move", "uniform_walk"]

_SHRINKS = 40
# Points of a thin set meet its equations to rounding only.
_ON_THE_SET = 1e-9


def hit_and_run_move(
    constraint: Constraint,
    obs: Tensor | None,
    points: Float[Tensor, "batch d"],
    level: Float[Tensor, " batch"],
    threshold: float,
    generator: torch.Generator | None,
    tangent: Float[Tensor, "batch d d"] | None = None,
) -> tuple[Float[Tensor, "batch d"], Float[Tensor, " batch"]]:
    """Make one move within ``{a in box : violation <= threshold}``; a point that finds no place stays.

    Args:
        constraint: The constraint.
        obs: Raw observations, one per point, or ``None``.
        points: Points of the set.
        level: Their violations.
        threshold: Level of the set.
        generator: Generator of the draws.
        tangent: Projector onto the directions that a thin set allows.

    Returns:
        The points after the move and their violations.

    Source:
        Beyond the paper. The shrinking interval of slice sampling keeps the uniform law on any set.
    """
    direction = torch.randn(points.shape, generator=generator, dtype=points.dtype, device=points.device)
    if tangent is not None:
        direction = torch.einsum("bij,bj->bi", tangent, direction)
    direction = direction / direction.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    ends = torch.stack([(-1 - points) / direction, (1 - points) / direction])
    ends = torch.where(direction.abs() > 1e-12, ends, torch.tensor([[[-4.0]], [[4.0]]]).to(ends))
    low, high = ends.amin(0).amax(-1), ends.amax(0).amin(-1)
    result, levels = points.clone(), level.clone()
    todo = torch.arange(len(points), device=points.device)
    for _ in range(_SHRINKS):
        draw = torch.rand(len(todo), generator=generator, dtype=points.dtype, device=points.device)
        distance = low[todo] + draw * (high[todo] - low[todo])
        candidate = (points[todo] + distance[:, None] * direction[todo]).clamp(-1, 1)
        reached = constraint._violation(None if obs is None else obs[todo], candidate)
        accepted = reached <= threshold
        result[todo[accepted]], levels[todo[accepted]] = candidate[accepted], reached[accepted]
        low[todo] = torch.where((distance < 0) & ~accepted, distance, low[todo])
        high[todo] = torch.where((distance >= 0) & ~accepted, distance, high[todo])
        todo = todo[~accepted]
        if len(todo) == 0:
            break
    return result, levels


def uniform_walk(
    constraint: Constraint,
    obs: Float[Tensor, "batch obs"] | None,
    start: Float[Tensor, "batch d"],
    steps: int,
    generator: torch.Generator | None,
) -> Float[Tensor, "batch d"]:
    """Walk within C(s), along its equations if it has any.

    Args:
        constraint: The constraint.
        obs: Raw observations, or ``None``.
        start: Feasible points.
        steps: Moves.
        generator: Generator of the draws.

    Returns:
        Feasible points.
    """
    points, level = start, constraint._violation(obs, start)
    equations = constraint._plane(obs, len(start), start)
    tangent = None
    if equations is not None:
        eye = torch.eye(start.shape[-1], dtype=start.dtype, device=start.device)
        tangent = eye - torch.linalg.pinv(equations) @ equations
    for _ in range(steps):
        points, level = hit_and_run_move(constraint, obs, points, level, _ON_THE_SET, generator, tangent)
    return points

"""Results of projections checked against the set that they belong to, and moved by a rounding error where needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int64
from octavo_core.errors import InvalidValueError, OctavoError
from torch import Tensor

if TYPE_CHECKING:
    from octavo_aram.constraints._batch import Batch
    from octavo_aram.constraints.base import Constraint

__all__ = ["FARTHEST", "directions_inwards", "pull_inside", "rounded_by_trial", "settled"]

FARTHEST = 1e-7
"""Longest way that a result is moved to make it feasible in float64."""

_SIZES = tuple(FARTHEST / 4.0**power for power in range(15, -1, -1))
# Back ends without float64 work in float32.
_TOLERANCES = {torch.float64: 1e-6}


def settled(
    constraint: Constraint,
    method: str,
    obs: Float[Tensor, "batch obs"] | None,
    points: Float[Tensor, "batch d"],
    goal: Float[Tensor, "batch d"],
) -> Float[Tensor, "batch d"]:
    """Check that points belong to the set; those outside by rounding are moved inwards by at most :data:`FARTHEST`.

    Args:
        constraint: The set.
        method: The method that made the points, for messages.
        obs: Raw observations, or ``None``.
        points: What it returned.
        goal: The actions that it was given.

    Returns:
        Feasible points, with the gradient of ``points``.

    Raises:
        InvalidValueError: If a point is not finite, or neither it nor what lies next to it is feasible.

    Source:
        Beyond the paper: nothing infeasible is handed on, whoever wrote the projection.
    """
    tolerance = _TOLERANCES.get(points.dtype, 1e-4)
    with torch.no_grad():
        found = points.detach()
        if not torch.isfinite(found).all():
            raise InvalidValueError(
                f"{type(constraint).__name__}.{method} returned NaN or infinite entries for finite observations and "
                "actions; return finite, feasible actions"
            )
        rows = (~constraint._contains(obs, found, tolerance)).nonzero()[:, 0]
        if len(rows) == 0:
            return points
        seen = None if obs is None else obs[rows]
        start = found[rows]
        directions = directions_inwards(constraint, seen, start, goal.detach()[rows] if method == "_project" else None)

        def accepts(index: Tensor, candidate: Tensor) -> Tensor:
            return constraint._contains(None if seen is None else seen[index], candidate, tolerance)

        moved, left = pull_inside(accepts, start, directions, _SIZES)
        if len(left):
            away = float(constraint._violation(None if seen is None else seen[left], start[left]).max())
            raise InvalidValueError(constraint._outside_message(method, away))
        shift = torch.zeros_like(found)
        shift[rows] = moved - start
    return points + shift


def directions_inwards(
    constraint: Constraint, obs: Tensor | None, points: Float[Tensor, "batch d"], goal: Tensor | None
) -> list[Tensor]:
    """Steps that may lead inwards from points on the border.

    Args:
        constraint: The set.
        obs: Raw observations, or ``None``.
        points: Points on the border.
        goal: The actions that were projected to them; ``None`` if there are none.

    Returns:
        Steps [batch, d] towards an interior point, along the direction of the projection, and to the origin; of any
        length.
    """
    steps = []
    try:
        anchor = constraint._anchor(obs, torch.zeros_like(points))
    except OctavoError:
        anchor = None
    if anchor is not None and anchor.shape == points.shape and torch.isfinite(anchor).all():
        steps.append(anchor - points)
    if goal is not None:
        # From an action to its projection on a convex set the way leads along the inner normal.
        steps.append(FARTHEST * torch.nn.functional.normalize(points - goal, dim=-1, eps=1e-300))
    return [*steps, -points]


def pull_inside(
    accepts: Callable[[Tensor, Tensor], Tensor],
    points: Float[Tensor, "batch d"],
    directions: Sequence[Tensor],
    sizes: Sequence[float],
) -> tuple[Float[Tensor, "batch d"], Int64[Tensor, " left"]]:
    """Move points by the shortest step that makes them feasible.

    Args:
        accepts: ``accepts(index, candidates)`` tells which candidates are feasible; ``index`` are their rows.
        points: Points to move.
        directions: Steps to try for each point, in this order; they are shortened to the sizes.
        sizes: Lengths, smallest first.

    Returns:
        The points, moved where a step helped, and the rows where none did.
    """
    result = points.clone()
    todo = torch.arange(len(points), device=points.device)
    lengths = [step.norm(dim=-1, keepdim=True).clamp(min=1e-300) for step in directions]
    for size in sizes:
        for step, length in zip(directions, lengths, strict=True):
            share = (size / length[todo]).clamp(max=1.0)
            candidate = (points[todo] + share * step[todo]).clamp(-1, 1)
            inside: Bool[Tensor, " rows"] = accepts(todo, candidate)
            result[todo[inside]] = candidate[inside]
            todo = todo[~inside]
            if len(todo) == 0:
                return result, todo
    return result, todo


def rounded_by_trial(
    constraint: Constraint, batch: Batch, exact: Float[Tensor, "batch d"], goal: Tensor | None
) -> Float[Tensor, "batch d"]:
    """Cast points of a set that is not convex: moved by a few units in the last place where that makes them feasible.

    Args:
        constraint: The set.
        batch: The call, with the dtype to cast to.
        exact: Feasible points in the working dtype.
        goal: The actions that were projected to them; ``None`` if there are none.

    Returns:
        The points in the caller's dtype.
    """
    result = batch.cast(exact)
    with torch.no_grad():
        rows = (~constraint._contains(batch.obs, result.to(exact.dtype), 1e-6)).nonzero()[:, 0]
        if len(rows) == 0 or not constraint.has_volume:
            return result
        obs, point = None if batch.obs is None else batch.obs[rows], exact.detach()[rows]

        def accepts(index: Tensor, candidate: Tensor) -> Tensor:
            held = batch.cast(candidate).to(candidate.dtype)
            return constraint._contains(None if obs is None else obs[index], held, 1e-6)

        steps = directions_inwards(constraint, obs, point, None if goal is None else goal.detach()[rows])
        steps = [torch.nn.functional.normalize(step, dim=-1, eps=1e-300) for step in steps]
        sizes = [torch.finfo(result.dtype).eps * 2.0**power for power in range(-1, 8)]
        moved, _ = pull_inside(accepts, point, steps, sizes)
        shift = torch.zeros_like(exact)
        shift[rows] = moved - point
    return batch.cast(exact + shift)

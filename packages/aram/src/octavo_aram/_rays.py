"""Rays from an interior point of a convex set, and the step at which they leave it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.constraints import Constraint
from octavo_aram.constraints.base import Batch

__all__ = ["box_exit", "rays_from_interior", "require_convex", "set_exit"]

_MAX_NEWTON_STEPS = 60
# Back ends without float64 work in float32.
_CONVERGED = {torch.float64: 1e-12, torch.float32: 1e-5}


def require_convex(constraint: Constraint) -> None:
    """Refuse a set that is not convex.

    Args:
        constraint: The set.

    Raises:
        InvalidTypeError: If it is not convex.
    """
    if not constraint.convex:
        raise InvalidTypeError(
            f"{constraint!r} is not convex, which corrections along rays and projection layers need; use "
            "acceptance-rejection, which needs membership only"
        )


def rays_from_interior(
    constraint: Constraint, obs: Tensor | None, act: Tensor, center: Tensor | None
) -> tuple[Batch, Tensor, Tensor]:
    """Start rays towards actions, within the affine hull of the set.

    Args:
        constraint: A convex set.
        obs: Raw observations; ``None`` if the set does not depend on them.
        act: Actions that the rays lead to.
        center: Feasible points to start from; ``None`` for the set's own interior points.

    Returns:
        The call's batch in float64, the origins, and the steps from them to the actions.

    Raises:
        InvalidTypeError: If the set is not convex.
        InvalidValueError: If an origin is not feasible.
    """
    require_convex(constraint)
    batch = Batch.of(constraint, obs, act)
    rows = len(batch.act)
    with torch.no_grad():
        if center is None:
            origin = constraint._interior(batch.obs, torch.zeros_like(batch.act))
        else:
            origin = Batch.of(constraint, obs, center).act.expand_as(batch.act)
            if not constraint._contains(batch.obs, origin, 1e-9).all():
                raise InvalidValueError("the centre to move from is not feasible; give points within the set")
        pieces = constraint._pieces(batch.obs, rows, batch.act) if rows else None
    direction = batch.act - origin
    if pieces is not None and pieces.equality is not None and not pieces.lifted:
        # A ray leaves a set of fixed sum at once unless it stays in the plane of the set.
        normals = pieces.equality.expand(rows, -1, -1)
        with torch.no_grad():
            within = torch.eye(normals.shape[-1]).to(normals) - torch.linalg.pinv(normals) @ normals
        direction = (within @ direction.unsqueeze(-1)).squeeze(-1)
    return batch, origin, direction


def box_exit(origin: Float[Tensor, "batch d"], direction: Float[Tensor, "batch d"]) -> Float[Tensor, " batch"]:
    """Find the step at which rays leave the box [-1, 1]^d.

    Args:
        origin: Points within the box.
        direction: Directions.

    Returns:
        Steps, differentiable in the direction; infinite for a ray that rests.
    """
    moving = direction != 0.0
    safe = torch.where(moving, direction, torch.ones_like(direction))
    steps = (torch.sign(safe) - origin) / safe
    return torch.where(moving, steps, torch.full_like(steps, torch.inf)).amin(-1).clamp(min=0.0)


def set_exit(
    constraint: Constraint,
    obs: Float[Tensor, "batch observation"] | None,
    origin: Float[Tensor, "batch d"],
    direction: Float[Tensor, "batch d"],
) -> Float[Tensor, " batch"]:
    """Find the step at which rays leave a convex set and the box.

    The largest constraint function is convex along the ray, so that Newton's method from outside comes down to the
    border without passing it. The first step instead follows the power of t that the function seems to be, which is
    exact for balls and cones around the origin; a step that falls inside is made good by the next. At the border
    ``g(c + t v) = 0`` the gradient is ``dt = -t (n . dv) / (n . v)`` with the normal n of the active function.

    Args:
        constraint: A convex set.
        obs: Raw observations in float64; ``None`` if the set does not depend on them.
        origin: Feasible points.
        direction: Directions.

    Returns:
        Steps, differentiable in the direction.

    Raises:
        InvalidTypeError: If the functions of the set are not differentiable.
    """
    to_box = box_exit(origin, direction)
    ray, start = direction.detach(), to_box.detach()
    step, normal, cut = start.clone(), torch.zeros_like(ray), torch.zeros_like(start, dtype=torch.bool)
    pending = torch.isfinite(start).nonzero()[:, 0]
    tolerance = _CONVERGED.get(ray.dtype, 1e-5)
    for attempt in range(_MAX_NEWTON_STEPS):
        rows_obs = None if obs is None else obs[pending]
        excess, gradient = _largest_function(constraint, rows_obs, origin[pending], ray[pending], step[pending])
        if attempt == 0:
            outside = excess > tolerance
            pending, excess, gradient = pending[outside], excess[outside], gradient[outside]
            rows_obs = None if rows_obs is None else rows_obs[outside]
        normal[pending], cut[pending] = gradient, True
        moving = (excess.abs() > tolerance) & (step[pending] > 0.0)
        if not moving.any():
            break
        slope = (gradient * ray[pending]).sum(-1)
        # From inside with the function still falling Newton has no direction: start again outside.
        following = torch.where(slope > 0.0, step[pending] - excess / slope.clamp(min=1e-300), start[pending])
        if attempt == 0:
            with torch.no_grad():
                deepest = constraint._excess(rows_obs, origin[pending]).amax(-1)
            rise = excess - deepest
            power = (step[pending] * slope / rise).clamp(min=1.0)
            guess = step[pending] * (-deepest / rise).clamp(min=0.0) ** (1.0 / power)
            following = torch.where(deepest < 0.0, guess, following)
        pending, following = pending[moving], following[moving]
        # An origin within rounding of the border leaves nothing to move.
        step[pending] = following.clamp(min=0.0)
    along = (normal * ray).sum(-1)
    change = (normal * (direction - ray)).sum(-1) / torch.where(along > 0.0, along, torch.ones_like(along))
    return torch.where(cut, step - step * change, to_box)


def _largest_function(
    constraint: Constraint,
    obs: Float[Tensor, "batch observation"] | None,
    origin: Float[Tensor, "batch d"],
    ray: Float[Tensor, "batch d"],
    step: Float[Tensor, " batch"],
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch d"]]:
    """Largest constraint function at points of the rays, and its gradient."""
    with torch.enable_grad():
        point = (origin + step.unsqueeze(-1) * ray).detach().requires_grad_()
        largest = constraint._excess(obs, point).amax(-1)
        if not largest.requires_grad:
            raise InvalidTypeError(
                f"the functions of {constraint!r} are not differentiable, which corrections along rays need; use "
                "acceptance-rejection or projection"
            )
        (gradient,) = torch.autograd.grad(largest.sum(), point)
    return largest.detach(), gradient

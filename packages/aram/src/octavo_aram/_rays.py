"""Rays from an interior point of a convex set, and the step at which they leave it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.constraints import Constraint, SumEquality
from octavo_aram.constraints.base import Batch

__all__ = ["box_exit", "rays_from_interior", "require_convex", "set_exit"]

_MAX_NEWTON_STEPS = 60
# Back ends without float64 work in float32.
_CONVERGED = {torch.float64: 1e-12, torch.float32: 1e-5}
# Points of a flat set meet its equations to rounding only.
_FLAT = 1e-8
# Interior points this near to the border make one look whether the set is flat.
_ON_THE_BORDER = 1e-9
_FAR = 1e6
_NO_WIDTH = 1e-6


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
) -> tuple[Batch, Tensor, Tensor, Tensor]:
    """Start rays towards actions, within the affine hull of the set.

    A ray leaves a flat set at once unless it stays in the set's hull. The equations of a fixed sum are known; other
    flat sets are told by an interior point on the border, and their hull is found by projecting far points.

    Args:
        constraint: A convex set.
        obs: Raw observations; ``None`` if the set does not depend on them.
        act: Actions that the rays lead to.
        center: Feasible points to start from; ``None`` for the set's own interior points.

    Returns:
        The call's batch in float64, the origins, the steps from them to the actions, and how far from the border counts
        as on it, one number for each ray.

    Raises:
        InvalidTypeError: If the set is not convex.
        InvalidValueError: If an origin is not feasible.
    """
    require_convex(constraint)
    batch = Batch.of(constraint, obs, act)
    rows = len(batch.act)
    with torch.no_grad():
        if center is None:
            origin = constraint._inner(batch.obs, torch.zeros_like(batch.act))
        else:
            origin = Batch.of(constraint, obs, center).act.expand_as(batch.act)
            if not constraint._contains(batch.obs, origin, 1e-9).all():
                raise InvalidValueError("the centre to move from is not feasible; give points within the set")
        tolerance = batch.act.new_full((rows,), _CONVERGED.get(batch.act.dtype, 1e-5))
        if rows == 0:
            return batch, origin, batch.act - origin, tolerance
        within = _plane_projector(constraint, batch.obs, batch.act)
        # A set that does not depend on the state has one hull.
        count = rows if constraint.needs_obs else 1
        largest = torch.maximum(constraint._excess(batch.obs, origin).amax(-1), origin.abs().amax(-1) - 1)
        flat = (largest[:count] >= -_ON_THE_BORDER).nonzero()[:, 0]
        if len(flat) and not isinstance(constraint, SumEquality):
            seen = None if batch.obs is None else batch.obs[flat]
            hull, middle = _hull(constraint, seen, origin[flat], within[flat])
            thin = hull.diagonal(dim1=1, dim2=2).sum(-1) < batch.act.shape[-1] - 0.5
            where = flat[thin] if constraint.needs_obs else slice(None)
            if thin.any():
                within[where], tolerance[where] = hull[thin], _FLAT
                if center is None:
                    origin = origin.clone()
                    origin[where] = middle[thin]
    direction = (within @ (batch.act - origin).unsqueeze(-1)).squeeze(-1)
    return batch, origin, direction, tolerance


def _plane_projector(constraint: Constraint, obs: Tensor | None, like: Tensor) -> Tensor:
    """Projectors [batch, d, d] onto the directions that the equations of a set leave."""
    eye = torch.eye(like.shape[-1]).to(like).repeat(len(like), 1, 1)
    normals = constraint._plane(obs, len(like), like)
    return eye if normals is None else eye - torch.linalg.pinv(normals) @ normals


def _hull(constraint: Constraint, obs: Tensor | None, origin: Tensor, plane: Tensor) -> tuple[Tensor, Tensor]:
    """Projectors onto the directions in which convex sets have width, and points in the middle of the sets.

    In each round a random direction among those without a known width is followed both ways to the set's ends. The part
    of the set's extent that is new adds one dimension; without any the set is flat there, almost surely.
    """
    dim = origin.shape[1]
    generator = torch.Generator().manual_seed(0)
    known = torch.zeros_like(plane)
    ends = [origin]
    for _ in range(dim):
        draw = torch.randn(dim, generator=generator, dtype=torch.float64).to(origin)
        rest = plane - known
        heading = rest @ draw
        length = heading.norm(dim=-1, keepdim=True)
        if not (length > _NO_WIDTH).any():
            break
        # A direction that has shrunk to rounding is none.
        far = _FAR * torch.where(length > _NO_WIDTH, heading / length.clamp(min=1e-300), 0.0)
        reached = [constraint._nearest(obs, constraint._nearest(obs, origin + sign * far)) for sign in (1.0, -1.0)]
        fresh = (rest @ (reached[0] - reached[1]).unsqueeze(-1)).squeeze(-1)
        width = fresh.norm(dim=-1, keepdim=True)
        if not (width > _NO_WIDTH).any():
            break
        unit = torch.where(width > _NO_WIDTH, fresh / width.clamp(min=1e-300), 0.0)
        known = known + unit.unsqueeze(-1) * unit.unsqueeze(-2)
        ends += reached
    # A component that the hull holds fixed must not move by rounding: it may lie on the border of the box.
    moving = (known.norm(dim=-1) > _NO_WIDTH).to(known.dtype)
    return known * moving.unsqueeze(-1) * moving.unsqueeze(-2), torch.stack(ends).mean(0)


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
    tolerance: Float[Tensor, " batch"],
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
        tolerance: Values of the constraint functions that count as zero, for each ray.

    Returns:
        Steps, differentiable in the direction.

    Raises:
        InvalidTypeError: If the functions of the set are not differentiable.
    """
    to_box = box_exit(origin, direction)
    ray, start = direction.detach(), to_box.detach()
    step, normal, cut = start.clone(), torch.zeros_like(ray), torch.zeros_like(start, dtype=torch.bool)
    pending = torch.isfinite(start).nonzero()[:, 0]
    for attempt in range(_MAX_NEWTON_STEPS):
        rows_obs = None if obs is None else obs[pending]
        excess, gradient = _largest_function(constraint, rows_obs, origin[pending], ray[pending], step[pending])
        if attempt == 0:
            outside = excess > tolerance[pending]
            pending, excess, gradient = pending[outside], excess[outside], gradient[outside]
            rows_obs = None if rows_obs is None else rows_obs[outside]
        normal[pending], cut[pending] = gradient, True
        moving = (excess.abs() > tolerance[pending]) & (step[pending] > 0.0)
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
            following = torch.where(deepest < -tolerance[pending], guess, following)
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

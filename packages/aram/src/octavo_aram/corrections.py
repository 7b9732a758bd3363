"""Corrections that make every action feasible without rejection: the differentiable layers of the compared methods.

All act on batches of torch tensors in the normalised box and are differentiable in the action: alpha-projection and
radial squashing move along a ray from an interior point and need no solver, the OptLayer projects. NFWPO instead moves
the actor towards a Frank-Wolfe target. They are defined for convex sets C(s).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_aram._rays import box_exit, rays_from_interior, require_convex, set_exit
from octavo_aram.constraints import Constraint, Orthoplex, PositivePower, SumEquality
from octavo_aram.constraints.base import Batch

__all__ = [
    "CORRECTIONS",
    "alpha_projection",
    "linear_maximiser",
    "nfwpo_target",
    "opt_layer",
    "radial_squash",
    "violation_penalty",
]

# A linear function is maximised by projecting a point this far away; see linear_maximiser.
_FAR = 1e7


def alpha_projection(
    constraint: Constraint,
    obs: Float[Tensor, "*batch observation"] | None,
    act: Float[Tensor, "*batch d"],
    *,
    center: Float[Tensor, "*batch d"] | None = None,
) -> Float[Tensor, "*batch d"]:
    """Shorten the step from an interior point until the action is feasible: ``c + t (a - c)`` with the largest t <= 1.

    Feasible actions stay as they are (in sets with a fixed sum, those with exactly that sum). No QP is solved once the
    interior point is known, but for flat sets: the step is first projected onto their affine hull, which projections
    find, for each state where the set depends on it.

    Args:
        constraint: A convex set.
        obs: Raw observations; ``None`` if the set does not depend on them.
        act: Actions in normalised units, of any magnitude.
        center: Feasible points c(s) to move from; default ``constraint.interior(obs)``.

    Returns:
        Feasible actions, differentiable in ``act``.

    Raises:
        InvalidTypeError: If the set is not convex, or its functions are not differentiable.
        InvalidValueError: If shapes do not fit or the set is empty.

    Source:
        Alpha-projection of the action-constrained RL benchmark (arXiv 2304.08743); t by Newton's method, its gradient
        from the active constraint.
    """
    batch, origin, direction, tolerance = rays_from_interior(constraint, obs, act, center)
    step = set_exit(constraint, batch.obs, origin, direction, tolerance).clamp(max=1.0)
    # Where the whole step fits, the action itself is returned, free of rounding.
    moved = origin + step.unsqueeze(-1) * direction
    return batch.shaped(batch.cast(torch.where((step >= 1.0).unsqueeze(-1), origin + direction, moved)))


def radial_squash(
    constraint: Constraint,
    obs: Float[Tensor, "*batch observation"] | None,
    act: Float[Tensor, "*batch d"],
    *,
    center: Float[Tensor, "*batch d"] | None = None,
    profile: str = "box",
) -> Float[Tensor, "*batch d"]:
    """Rescale the distance from an interior point so that the whole box lands in the set.

    With ``profile="box"`` the ray from c to the border of the box is mapped linearly to its part within the set: a
    bijection of the box onto C(s), so that every feasible action can be reached. (Of a flat set too: steps are first
    projected onto its affine hull.) With ``profile="tanh"`` the distance in units of the set's radius r becomes
    ``tanh``: smooth across the centre and open to any magnitude, but an action of the box reaches at most
    ``tanh(1 / r)``.

    Args:
        constraint: A convex set.
        obs: Raw observations; ``None`` if the set does not depend on them.
        act: Actions in normalised units; with ``"box"`` those outside are shortened to the box.
        center: Feasible points c(s) to move from; default ``constraint.interior(obs)``.
        profile: ``"box"`` or ``"tanh"``.

    Returns:
        Feasible actions, differentiable in ``act``.

    Raises:
        InvalidTypeError: If the set is not convex, or its functions are not differentiable.
        InvalidValueError: If shapes do not fit, the set is empty or the profile does not exist.

    Source:
        Radial squashing of the action-constrained RL benchmark (arXiv 2304.08743); the linear profile is beyond the
        paper, because ``tanh`` leaves a part of a wide set unused.
    """
    if profile not in {"box", "tanh"}:
        raise InvalidValueError(f"profile={profile!r}; choose 'box' or 'tanh'")
    batch, origin, direction, tolerance = rays_from_interior(constraint, obs, act, center)
    resting = (direction.detach().abs().amax(-1, keepdim=True) < 1e-12).expand_as(direction)
    # The scale does not depend on the length of the direction; at the centre any direction will do.
    heading = torch.where(resting, torch.ones_like(direction), direction)
    to_border = set_exit(constraint, batch.obs, origin, heading, tolerance)
    if profile == "tanh":
        scale = to_border * torch.tanh(1.0 / to_border.clamp(min=1e-300))
    else:
        to_box = box_exit(origin, heading)
        scale = to_border / to_box.clamp(min=1e-12) * to_box.clamp(max=1.0)
    return batch.shaped(batch.cast(origin + scale.unsqueeze(-1) * direction))


def opt_layer(
    constraint: Constraint,
    obs: Float[Tensor, "*batch observation"] | None,
    act: Float[Tensor, "*batch d"],
) -> Float[Tensor, "*batch d"]:
    """Project differentiably: the nearest feasible action and the implicit gradient of its optimality conditions.

    Args:
        constraint: A convex set with a projection.
        obs: Raw observations; ``None`` if the set does not depend on them.
        act: Actions in normalised units, of any magnitude.

    Returns:
        Feasible actions, differentiable in ``act``; feasible actions stay as they are (in sets with a fixed sum, those
        with exactly that sum).

    Raises:
        InvalidTypeError: If the set is not convex.
        InvalidValueError: If shapes do not fit or the set is empty.

    Source:
        The OptLayer of the compared methods (DOpt); the projection is the constraint's own, a closed form for most.
    """
    require_convex(constraint)
    return constraint.project(obs, act)


def linear_maximiser(
    constraint: Constraint,
    obs: Float[Tensor, "*batch observation"] | None,
    gradient: Float[Tensor, "*batch d"],
) -> Float[Tensor, "*batch d"]:
    """Feasible actions that maximise ``gradient . c``.

    Power limits and fixed sums are filled greedily, best ratio first. Elsewhere a far point in the direction of the
    gradient is projected: for a unit gradient g, ``project(s g)`` is at most ``d / (2 s)`` short of the maximum (1e-6
    for twenty dimensions), and exact for polytopes whose optimal vertex is reached. Sets whose projection is a QP count
    one solve a row.

    Args:
        constraint: A convex set.
        obs: Raw observations; ``None`` if the set does not depend on them.
        gradient: Directions; of any length.

    Returns:
        Feasible actions, without gradient; where the direction is zero, the feasible action of least norm.

    Raises:
        InvalidTypeError: If the set is not convex.
        InvalidValueError: If shapes do not fit or the set is empty.

    Source:
        The Frank-Wolfe step of NFWPO. Bound: the projection of ``s g`` minimises ``|c|^2 / 2 - s g . c``.
    """
    require_convex(constraint)
    with torch.no_grad():
        batch = Batch.of(constraint, obs, gradient)
        best = _fill_greedily(constraint, batch.obs, batch.act)
        if best is not None:
            return batch.shaped(batch.cast(best))
        largest = batch.act.abs().amax(-1, keepdim=True)
        scaled = batch.act / torch.where(largest > 0.0, largest, torch.ones_like(largest))
        far = _FAR * torch.nn.functional.normalize(scaled, dim=-1)
        return batch.shaped(batch.cast(constraint.project(batch.obs, far)))


def nfwpo_target(
    constraint: Constraint,
    obs: Float[Tensor, "*batch observation"] | None,
    act: Float[Tensor, "*batch d"],
    gradient: Float[Tensor, "*batch d"],
    *,
    beta: float | int = 0.01,
) -> Float[Tensor, "*batch d"]:
    """Where NFWPO regresses the actor to: a Frank-Wolfe step from the projected action.

    Args:
        constraint: A convex set.
        obs: Raw observations; ``None`` if the set does not depend on them.
        act: Actions of the actor; they are projected first (which leaves feasible ones as they are,
            but for ``SumEquality``, which moves them to exactly the sum).
        gradient: Gradient of the critic in the action, at the projected action.
        beta: Length of the step in [0, 1]; 0.01 in the benchmark.

    Returns:
        ``(1 - beta) P(a) + beta argmax_{c in C(s)} c . gradient``, feasible, without gradient.

    Raises:
        InvalidTypeError: If the set is not convex.
        InvalidValueError: If ``beta`` leaves [0, 1], shapes do not fit or the set is empty.

    Source:
        NFWPO (Lin et al., UAI 2021), as compared in section 5 of the paper.
    """
    if not 0.0 <= beta <= 1.0:
        raise InvalidValueError(f"beta={beta} must lie in [0, 1]")
    with torch.no_grad():
        reference = opt_layer(constraint, obs, act)
        return torch.lerp(reference, linear_maximiser(constraint, obs, gradient), float(beta))


def violation_penalty(
    constraint: Constraint,
    obs: Float[Tensor, "*batch observation"] | None,
    act: Float[Tensor, "*batch d"],
    *,
    coefficient: float | int = 1.0,
) -> Float[Tensor, ""]:
    """Penalty that the "+" methods add to the actor's loss.

    Args:
        constraint: Any constraint whose violation is differentiable.
        obs: Raw observations; ``None`` if the set does not depend on them.
        act: Actions of the actor.
        coefficient: Weight, non-negative; 1 in the benchmark, 10 when tuned for Reacher.

    Returns:
        ``coefficient`` times the mean violation.

    Raises:
        InvalidValueError: If the coefficient is negative or shapes do not fit.

    Source:
        DPre+, SPre+ and DPro+ of the compared methods.
    """
    if not coefficient >= 0.0:
        raise InvalidValueError(f"coefficient={coefficient} must be at least 0")
    return coefficient * constraint.violation(obs, act).mean()


CORRECTIONS: dict[str, Callable[[Constraint, Tensor | None, Tensor], Tensor]] = {
    "alpha": alpha_projection,
    "radial": radial_squash,
    "optlayer": opt_layer,
}
"""Corrections by name, all called as ``correction(constraint, obs, act)``."""


def _fill_greedily(
    constraint: Constraint, obs: Float[Tensor, "batch observation"] | None, goal: Float[Tensor, "batch d"]
) -> Float[Tensor, "batch d"] | None:
    """Maximise over the sets whose linear programs are fractional knapsacks; ``None`` for others."""
    if isinstance(constraint, SumEquality):
        # With x = (c + 1) / 2 in [0, 1] the sum of x is fixed: the largest entries of the gradient are filled first.
        total = goal.new_full((len(goal),), (constraint.total + constraint.action_dim) / 2.0)
        return 2.0 * _knapsack(goal, torch.ones_like(goal), total) - 1.0
    if not isinstance(constraint, Orthoplex | PositivePower):
        return None
    weights = constraint._weights(obs, goal)
    if isinstance(constraint, PositivePower):
        weights = torch.where(weights.sign() * goal.sign() > 0, weights, torch.zeros_like(weights))
    ratio = goal.abs() / weights.abs().clamp(min=1e-300)
    return goal.sign() * _knapsack(ratio, weights.abs(), constraint._limits(goal))


def _knapsack(
    ratio: Float[Tensor, "batch d"], weight: Float[Tensor, "batch d"], limit: Float[Tensor, " batch"]
) -> Float[Tensor, "batch d"]:
    """Shares in [0, 1] that use up a limit, largest ratio first."""
    order = ratio.argsort(dim=-1, descending=True, stable=True)
    sorted_weight = weight.gather(-1, order)
    left = limit.unsqueeze(-1) - sorted_weight.cumsum(-1) + sorted_weight
    share = torch.where(sorted_weight > 0.0, left / sorted_weight.clamp(min=1e-300), torch.ones_like(left))
    return torch.zeros_like(weight).scatter(-1, order, share.clamp(0.0, 1.0))

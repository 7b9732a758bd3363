"""Projections onto one coupling constraint and a box: the multiplier is found exactly, for all rows at once.

Each search runs without gradient; the result is then written as a closed form on the faces that it identified, so that
automatic differentiation gives the exact derivative of the projection.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from octavo_aram.constraints._empty import EmptySetError
from octavo_aram.constraints._single import ball_share, knapsack_point

__all__ = ["clip", "project_ball", "project_diagonal_ellipsoid", "project_knapsack"]

# Below this share of the row's largest weight squares vanish.
_NEGLIGIBLE_WEIGHT = 1e-140
# With weights further apart than this the search would take too many steps; the pieces are looked at one by one.
_FAR_APART = 1e-14
_MAX_STEPS = 200
# Steps after which the search halves its bracket now and then, so that no input makes it long.
_PATIENCE = 10
_FEW_PRODUCTS = 40_000


def clip(x: Tensor, lower: float, upper: float) -> Tensor:
    """Clip with derivative 1 at the bounds, which belong to the set; releases of torch differ about ``clamp`` there.

    Args:
        x: Values.
        lower: Lower bound.
        upper: Upper bound.

    Returns:
        The clipped values.
    """
    if not x.requires_grad:
        return x.clamp(lower, upper)
    inside = (x.detach() >= lower) & (x.detach() <= upper)
    return torch.where(inside, x, x.detach().clamp(lower, upper))


def project_knapsack(
    point: Float[Tensor, "batch d"],
    weight: Float[Tensor, "batch d"],
    lower: float,
    upper: float,
    limit: Float[Tensor, " batch"],
    *,
    equality: bool = False,
) -> Float[Tensor, "batch d"]:
    """Project onto ``{x : weight . x <= limit, lower <= x <= upper}``.

    The solution is ``clip(point - multiplier * weight)``; the multiplier is the root of a piecewise linear monotone
    function, found by bracketed Newton steps, which end on the right piece and are exact there.

    Args:
        point: Points to project.
        weight: Weights >= 0.
        lower: Lower bound of every component.
        upper: Upper bound of every component.
        limit: Right-hand sides.
        equality: Demand ``weight . x == limit`` instead.

    Returns:
        The nearest feasible points, in the dtype of ``point``; float64 is expected.

    Raises:
        EmptySetError: If no point of the box meets a row's limit.

    Source:
        Section 5 of the paper lists the constraints; the dual is that of the continuous quadratic knapsack.
    """
    if len(point) == 1 and _plain(point, weight):
        x = _project_one(point[0].numpy(), weight[0].numpy(), lower, upper, float(limit[0]), equality)
        return torch.from_numpy(x)[None]
    clipped = clip(point, lower, upper)
    with torch.no_grad():
        load = torch.linalg.vecdot(weight, clipped)
        active = load != limit if equality else load > limit
        rows = active.nonzero()[:, 0]
    if len(rows) == 0:
        return clipped
    everything = len(rows) == len(point)
    p, w, target = (point, weight, limit) if everything else (point[rows], weight[rows], limit[rows])
    largest = w.detach().amax(-1)
    _refuse_empty(w.detach(), largest, lower, upper, target.detach(), rows, equality)
    u = w / largest[:, None]
    # Masks multiply throughout: torch.where costs several times as much on a CPU.
    u = u * (u > _NEGLIGIBLE_WEIGHT)
    target = target / largest
    with torch.no_grad():
        # A few rows: all pieces at once; many: a search, whose steps touch each number once.
        few = 2 * u.numel() * u.shape[-1] <= _FEW_PRODUCTS
        find = _multiplier_from_pieces if few else _multiplier_by_search
        multiplier = find(p, u, lower, upper, target, equality)
        if not few:
            wide = ((u > 0) & (u < _FAR_APART)).any(-1).nonzero()[:, 0]
            if len(wide):
                multiplier[wide] = _multiplier_from_pieces(p[wide], u[wide], lower, upper, target[wide], equality)
        moved = p - multiplier[:, None] * u
        free = (moved > lower) & (moved < upper)
        held = moved.clamp(lower, upper) * ~free
    # The closed form on the face, differentiable in the weights too: the multiplier from the free components alone.
    face = u * free
    squares = torch.linalg.vecdot(face, face)
    on_face = squares > 0
    squares = torch.where(on_face, squares, 1.0)
    exact = torch.linalg.vecdot(u, p * free + held) - target
    shift = torch.where(on_face, exact / squares, multiplier)
    x = (p - shift[:, None] * u) * free + held
    with torch.no_grad():
        # Far points lose digits in p - shift * u; a correction at the scale of the box restores the limit.
        residual = (torch.linalg.vecdot(u, x) - target) * on_face
        correction = (x - face * (residual / squares)[:, None]).clamp(lower, upper) - x
    x = x + correction
    return x if everything else clipped.index_put((rows,), x)


def _project_one(
    point: np.ndarray, weight: np.ndarray, lower: float, upper: float, limit: float, equality: bool
) -> np.ndarray:
    clipped = point.clip(lower, upper)
    with np.errstate(over="ignore"):
        load, total = weight @ clipped, weight.sum()
    if (load == limit) if equality else (load <= limit):
        return clipped
    largest = weight.max()
    rounding = 1e-12 * (total + abs(limit))
    if total * lower > limit + rounding or (equality and total * upper < limit - rounding):
        raise _empty(limit, 0)
    unit = weight / largest
    return knapsack_point(point, np.where(unit > _NEGLIGIBLE_WEIGHT, unit, 0.0), lower, upper, limit / largest)


def _empty(limit: float, row: int) -> EmptySetError:
    return EmptySetError(
        f"the feasible set is empty: no action in the box meets the limit {limit:g}", row, "change the limit"
    )


def _plain(*tensors: Tensor) -> bool:
    """Whether NumPy can take over: CPU tensors of float64 without gradient."""
    return all(x.device.type == "cpu" and x.dtype == torch.float64 and not x.requires_grad for x in tensors)


def _refuse_empty(
    weight: Tensor, largest: Tensor, lower: float, upper: float, limit: Tensor, rows: Tensor, equality: bool
) -> None:
    total = weight.sum(-1)
    rounding = 1e-12 * (total + limit.abs())
    empty = total * lower > limit + rounding
    if equality:
        empty |= total * upper < limit - rounding
    if empty.any():
        index = int(empty.nonzero()[0, 0])
        raise _empty(float(limit[index]), int(rows[index]))


def _multiplier_from_pieces(
    p: Tensor, u: Tensor, lower: float, upper: float, target: Tensor, equality: bool
) -> Float[Tensor, " batch"]:
    """The middle of the linear piece that holds the root: the free components are the same on all of it."""
    positive = u > 0
    divisor = torch.where(positive, u, 1.0)
    ends = torch.cat([(p - lower) / divisor, (p - upper) / divisor], 1)
    ends = torch.where(positive.repeat(1, 2), ends, ends.new_tensor(torch.inf))
    ends = ends.sort(-1).values
    finite = ends.isfinite()
    ends = torch.where(finite, ends, torch.where(finite, ends, -torch.inf).amax(-1, keepdim=True))
    moved = p[:, None, :] - ends[:, :, None] * u[:, None, :]
    above = (moved.clamp(lower, upper) * u[:, None, :]).sum(-1) > target[:, None]
    right = above.sum(-1, keepdim=True).clamp(max=ends.shape[1] - 1)
    left = (right - 1).clamp(min=0)
    return ((ends.gather(1, left) + ends.gather(1, right)) / 2)[:, 0]


def _multiplier_by_search(
    p: Tensor, u: Tensor, lower: float, upper: float, target: Tensor, equality: bool
) -> Float[Tensor, " batch"]:
    positive = u > 0
    divisor = torch.where(positive, u, 1.0)
    high = torch.where(positive, (p - lower) / divisor, -torch.inf).amax(-1)
    low = torch.where(positive, (p - upper) / divisor, torch.inf).amin(-1) if equality else torch.zeros_like(high)
    high = torch.maximum(high, low)
    multiplier = torch.zeros_like(high).clamp(low, high)
    # What rounding leaves of the residual; the closed form of the caller takes the rest.
    tolerance = 1e-15 * (u * p.abs() + u).sum(-1) + 1e-15 * target.abs()
    result = multiplier
    todo: Tensor | None = None
    for step in range(_MAX_STEPS):
        moved = p - multiplier[:, None] * u
        clipped = moved.clamp(lower, upper)
        residual = torch.linalg.vecdot(u, clipped) - target
        above = residual > 0
        low, high = torch.where(above, multiplier, low), torch.where(above, high, multiplier)
        free = u * (moved == clipped)
        newton = multiplier + residual / torch.linalg.vecdot(free, free)
        usable = (newton > low) & (newton < high)
        middle = low + (high - low) / 2
        after = middle if step >= _PATIENCE and step % 3 == 0 else torch.where(usable, newton, middle)
        done = (residual.abs() <= tolerance) | (after == multiplier) | (high - low <= 1e-16 * high.abs())
        multiplier = torch.where(done, multiplier, after)
        if step == _MAX_STEPS - 1:
            multiplier = torch.where(done, multiplier, high)
        finished = int(done.sum())
        result = multiplier if todo is None else result.index_copy(0, todo, multiplier)
        if finished == len(done):
            break
        # Rows that are done cost little; dropping them copies the others.
        if 4 * finished > len(done):
            keep = (~done).nonzero()[:, 0]
            todo = keep if todo is None else todo[keep]
            p, u, target, low, high, multiplier, tolerance = (
                values[keep] for values in (p, u, target, low, high, multiplier, tolerance)
            )
    return result


def project_ball(
    point: Float[Tensor, "batch d"], center: Float[Tensor, "*batch d"], radius2: float
) -> Float[Tensor, "batch d"]:
    """Project onto the intersection of a ball, whose centre lies in the box, and the box [-1, 1]^d.

    The solution is ``clip(center + share * (point - center))``; the components that reach the box are found in at most
    d rounds, since the share that ignores the box is too small and grows as components are fixed.

    Args:
        point: Points to project.
        center: Centre of the ball, within the box.
        radius2: Squared radius >= 0.

    Returns:
        The nearest feasible points.

    Source:
        Section 5 of the paper (``a = clip(a0 / (1 + 2 l))``), solved without a search.
    """
    offset = point - center
    room = torch.where(offset > 0, 1 - center, 1 + center).expand_as(offset)
    clipped = clip(point, -1.0, 1.0)
    with torch.no_grad():
        rows = ((clipped - center).square().sum(-1) > radius2).nonzero()[:, 0]
    if len(rows) == 0:
        return clipped
    u, b = offset[rows], room[rows]
    if len(rows) == 1 and _plain(u, b):
        x = center.expand_as(point)[rows] + ball_share(u[0].numpy(), b[0].numpy(), radius2) * u
        return clipped.index_copy(0, rows, x.clamp(-1, 1))
    zero = torch.zeros_like(u)
    fixed = torch.zeros_like(u, dtype=torch.bool)
    while True:
        rest = (radius2 - torch.where(fixed, b * b, zero).sum(-1)).clamp(min=0)
        norm2 = torch.where(fixed, zero, u * u).sum(-1)
        share = (rest.clamp(min=1e-300) / norm2.clamp(min=1e-300)).sqrt().clamp(max=1.0)
        share = torch.where(rest > 0, share, torch.zeros_like(share))
        reached = fixed | (share[:, None] * u.abs() > b)
        if torch.equal(reached, fixed):
            break
        fixed = reached
    x = torch.where(fixed, clipped[rows], center.expand_as(point)[rows] + share[:, None] * u)
    return clipped.index_put((rows,), x.clamp(-1, 1))


def project_diagonal_ellipsoid(
    point: Float[Tensor, "batch d"],
    scale: Float[Tensor, "batch d"],
    center: Float[Tensor, "*batch d"],
    bound: float,
    *,
    boxed: bool = True,
) -> Float[Tensor, "batch d"]:
    """Project onto ``{x in [-1, 1]^d : sum_i scale_i (x_i - center_i)^2 <= bound}``.

    The solution is ``clip(center + (point - center) / (1 + multiplier * scale))``; the multiplier is found by bracketed
    Newton steps on the reciprocal square root of the left-hand side, which is nearly linear in it.

    Args:
        point: Points to project.
        scale: Diagonal >= 0; zero leaves a component to the box.
        center: Centre, within the box.
        bound: Right-hand side >= 0.
        boxed: Whether the box belongs to the set.

    Returns:
        The nearest feasible points.

    Source:
        Beyond the paper: the constraint ``sum a_i^2 sin^2 theta_i <= 0.1`` of the omron-sinicx benchmark.
    """
    edge = 1.0 if boxed else torch.inf
    clipped = clip(point, -edge, edge)
    largest = scale.detach().amax(-1, keepdim=True)
    safe = torch.where(largest > 0, largest, 1.0)
    # Masks multiply throughout: torch.where costs several times as much on a CPU.
    unit = scale / safe
    unit = unit * (unit > _NEGLIGIBLE_WEIGHT)
    limit = bound / safe[:, 0]
    with torch.no_grad():
        away = clipped - center
        rows = (torch.linalg.vecdot(unit, away * away) > limit).nonzero()[:, 0]
    if len(rows) == 0:
        return clipped
    c = center.expand_as(point)
    u, q, r, kept = point - center, unit, limit, clipped
    everything = len(rows) == len(point)
    if not everything:
        u, q, r, c, kept = u[rows], q[rows], r[rows], c[rows], clipped[rows]
    if bound == 0:
        return clipped.index_put((rows,), torch.where(q > 0, c, kept))
    with torch.no_grad():
        size = u.abs()
        # Distance of the centre from the box, in the direction of each component.
        b = edge - c * u.sign() if boxed else torch.full_like(u, torch.inf)
        multiplier = _ellipsoid_multiplier(size, q, r, b)
        shrink = 1 / (1 + multiplier[:, None] * q)
        free = size * shrink < b
        held = b * b * q * ~free if boxed else torch.zeros_like(u)
    # One Newton step with gradient: its value is zero and its derivative that of the implicit function.
    moved = u / (1 + multiplier[:, None] * q)
    part = q * moved * moved * free
    slope = -2 * torch.linalg.vecdot(part.detach(), q.detach() * shrink)
    step_back = (part.sum(-1) + held.sum(-1) - r) / slope.clamp(max=-1e-300)
    exact = torch.where(slope < 0, multiplier - step_back, multiplier)
    x = (c + u / (1 + exact[:, None] * q)).clamp(-edge, edge)
    with torch.no_grad():
        away = x - c
        value = torch.linalg.vecdot(q, away * away)
        shrink = torch.where(value > r, (r / value).sqrt(), 1.0)[:, None]
        correction = away * (shrink - 1) * (q > 0)
    x = x + correction
    return x if everything else clipped.index_put((rows,), x)


def _ellipsoid_multiplier(size: Tensor, q: Tensor, r: Tensor, b: Tensor) -> Tensor:
    """Root m of ``sum q min(size / (1 + m q), b)^2 = r`` for every row.

    Bracketed Newton steps on the reciprocal square root, which is nearly linear in m; rows that are done leave the
    batch.
    """
    low = torch.zeros_like(r)
    # q / (1 + m q)^2 <= 1 / (4 m) bounds the left-hand side by |size|^2 / (4 m).
    high = torch.linalg.vecdot(size, size) / (4 * r)
    multiplier = result = low.clone()
    todo: Tensor | None = None
    for step in range(_MAX_STEPS):
        shrink = torch.addcmul(torch.ones_like(q), q, multiplier[:, None]).reciprocal_()
        moved = size * shrink
        cut = torch.minimum(moved, b)
        part = (cut * cut).mul_(q)
        value = part.sum(-1)
        slope = -2 * torch.linalg.vecdot(part.mul_(moved < b), shrink.mul_(q))
        above = value > r
        low, high = torch.where(above, multiplier, low), torch.where(above, high, multiplier)
        newton = multiplier + 2 * value * ((value / r).sqrt() - 1) / (-slope).clamp(min=1e-300)
        usable = (slope < 0) & (newton > low) & (newton < high)
        if step % 6 == 5:
            usable = torch.zeros_like(usable)
        middle = torch.where(low > 0, (low * high).sqrt(), high * 1e-3)
        # The caller's last Newton step squares what is left.
        done = ((value - r).abs() <= 1e-9 * r) | (high - low <= 2e-16 * high)
        multiplier = torch.where(done, multiplier, torch.where(usable, newton, middle))
        result = multiplier if todo is None else result.index_copy(0, todo, multiplier)
        finished = int(done.sum())
        if finished == len(done):
            break
        # Rows that are done cost little; dropping them copies the others.
        if 4 * finished > len(done):
            keep = (~done).nonzero()[:, 0]
            todo = keep if todo is None else todo[keep]
            size, q, r, b, low, high, multiplier = (x[keep] for x in (size, q, r, b, low, high, multiplier))
    return result

"""A batched primal-dual interior-point method for small convex problems with linear and quadratic constraints.

It serves the sets that have no one-dimensional dual: full ellipsoids within the box, and intersections.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from octavo_aram.constraints._empty import EmptySetError
from octavo_aram.constraints._pieces import merge_pieces, scaled_pieces, with_equations
from octavo_aram.constraints.base import ConvexPieces

__all__ = ["deepest_point", "project_pieces"]

_MAX_STEPS = 80
_BOUNDARY_SHARE = 0.995
_LARGEST_DUAL = 1e9
_REGULAR = 1e-12
_FARTHEST = 1e8


def project_pieces(point: Float[Tensor, "batch d"], pieces: ConvexPieces) -> Float[Tensor, "batch d"]:
    """Project onto a set given by pieces, box included.

    Args:
        point: Points to project.
        pieces: The set, with an inequality for every bound that matters.

    Returns:
        The nearest points, to about 1e-9; with gradient if ``point`` or the inequalities and quadratics have one.

    Raises:
        EmptySetError: If a set is empty.

    Source:
        Beyond the paper: intersections such as orthoplex and ellipsoid of the omron-sinicx benchmark.
    """
    batch, dim = point.shape
    size = dim + pieces.lifted
    scaled = with_equations(scaled_pieces(pieces))
    with torch.no_grad():
        # The method tells directions apart to a part in 1e7 or so; shortened to this, a far point's changes less.
        shorter = point * (_FARTHEST / point.abs().amax(-1, keepdim=True)).clamp(max=1.0) - point
    point = point + shorter
    goal = torch.nn.functional.pad(point, (0, pieces.lifted))
    with torch.no_grad():
        # The objective is scaled so that its gradient is of size 1 at far points.
        diagonal = point.new_zeros(batch, size)
        diagonal[:, :dim] = 1 / point.abs().amax(-1, keepdim=True).clamp(min=1.0)
        z, multipliers, solved = _solve_with_retries(goal, diagonal, torch.zeros_like(goal), scaled, dim)
        if not solved.all():
            raise EmptySetError(
                "the feasible set seems to be empty: no point meets all parts",
                int((~solved).nonzero()[0, 0]),
                "loosen one of them, or check with interior()",
            )
    step = _newton_step(z, multipliers, goal, diagonal, scaled, dim)
    return z[:, :dim] if step is None else z[:, :dim] + step


def _newton_step(
    z: Tensor, multipliers: Tensor, goal: Tensor, diagonal: Tensor, pieces: ConvexPieces, dim: int
) -> Tensor | None:
    """Zeros [batch, d] with the derivative of the projection; ``None`` where neither goal nor pieces have a gradient.

    It is one Newton step on the optimality conditions of the active constraints. A constraint is active where its
    multiplier exceeds its slack; of the last iterate's barrier, which would count those with small multipliers in part,
    nothing is left. Equations count as fixed.
    """
    assert pieces.inequality is not None
    assert pieces.inequality_bound is not None
    batch = len(z)
    quadratics = [(q.expand(batch, dim, dim), c.expand(batch, dim), r.expand(batch)) for q, c, r in pieces.quadratics]
    value, jacobian = _functions(z, pieces.inequality, pieces.inequality_bound, quadratics, dim, None)
    active = multipliers > -value
    residual = [diagonal * (z - goal) + _times(jacobian.mT, multipliers * active), value * active]
    if not any(part.requires_grad for part in residual):
        return None
    with torch.no_grad():
        hessian = torch.diag_embed(diagonal)
        for index, (q, _, _) in enumerate(quadratics):
            weight = multipliers[:, pieces.inequality.shape[1] + index, None, None]
            hessian[:, :dim, :dim] += 2 * weight * q
        # What the objective and the active constraints leave free must not make the system singular.
        hessian.diagonal(dim1=1, dim2=2)[:, dim:] += _REGULAR
        rows, signs = jacobian * active[..., None], torch.where(active, -_REGULAR, -1.0)
        if pieces.equality is not None:
            rows = torch.cat([rows, pieces.equality], 1)
            signs = torch.cat([signs, signs.new_full(pieces.equality.shape[:2], -_REGULAR)], 1)
            residual.append(value.new_zeros(pieces.equality.shape[:2]))
        system = torch.cat([torch.cat([hessian, rows.mT], 2), torch.cat([rows, torch.diag_embed(signs)], 2)], 1)
    change = torch.cat(residual, 1)
    return -torch.linalg.solve(system, change - change.detach())[:, :dim]


def deepest_point(pieces: ConvexPieces, batch: int, dim: int, like: Tensor) -> Float[Tensor, "batch d"]:
    """Find a point whose constraint functions are all as negative as possible.

    Args:
        pieces: The set, box included.
        batch: Number of states.
        dim: Number of action components.
        like: Tensor whose dtype and device to use.

    Returns:
        The points.

    Raises:
        EmptySetError: If a set is empty.
    """
    # The depth t is one more lifted variable: every inequality and quadratic gains "- t", and t >= -1.
    grown = [ConvexPieces(lifted=1), pieces]
    merged = merge_pieces(grown, dim)
    assert merged.inequality is not None
    assert merged.inequality_bound is not None
    norms = merged.inequality[..., :dim].norm(dim=-1)
    inequality = merged.inequality.clone()
    inequality[..., dim] = -torch.where(norms > 0, norms, torch.ones_like(norms))
    floor = inequality.new_zeros(batch, 1, inequality.shape[-1])
    floor[..., dim] = -1.0
    merged = replace(
        merged,
        inequality=torch.cat([inequality, floor], 1),
        inequality_bound=torch.cat([merged.inequality_bound, like.new_ones(batch, 1)], 1),
    )
    size = dim + merged.lifted
    goal = like.new_zeros(batch, size)
    diagonal = like.new_full((batch, size), 1e-6)
    linear = like.new_zeros(batch, size)
    linear[:, dim] = 1.0
    solution, _, solved = _solve_with_retries(goal, diagonal, linear, merged, dim, depth=dim)
    if not solved.all() or (solution[:, dim] > 1e-7).any():
        raise EmptySetError("the feasible set is empty: no point meets all parts; loosen one of them")
    return solution[:, :dim].clamp(-1, 1)


def _solve_with_retries(
    goal: Tensor, diagonal: Tensor, linear: Tensor, pieces: ConvexPieces, dim: int, depth: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Solve, and start rows that did not converge again from other slacks."""
    z, multipliers, solved = _solve(goal, diagonal, linear, pieces, dim, depth)
    for first_slack in (0.3, 50.0, 0.01, 1000.0):
        if solved.all():
            break
        todo = (~solved).nonzero()[:, 0]
        again = _solve(goal[todo], diagonal[todo], linear[todo], _rows_of(pieces, todo), dim, depth, first_slack)
        z[todo], multipliers[todo], solved[todo] = again
    return z, multipliers, solved


def _rows_of(pieces: ConvexPieces, rows: Tensor) -> ConvexPieces:
    # Parts of a quadratic that are the same for all states have no batch axis.
    quadratics = tuple(
        (q[rows] if q.ndim == 3 else q, c[rows] if c.ndim == 2 else c, r[rows] if r.ndim == 1 else r)
        for q, c, r in pieces.quadratics
    )
    return ConvexPieces(
        pieces.lifted,
        *(
            None if values is None else values[rows]
            for values in (pieces.inequality, pieces.inequality_bound, pieces.equality, pieces.equality_bound)
        ),
        quadratics,
    )


def _solve(
    goal: Tensor,
    diagonal: Tensor,
    linear: Tensor,
    pieces: ConvexPieces,
    dim: int,
    depth: int | None = None,
    first_slack: float = 5.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Minimise ``1/2 (z - goal)^T diagonal (z - goal) + linear . z`` over the pieces (Mehrotra's predictor-corrector).

    Returns the solution, the multipliers of the inequalities and quadratics, and which rows converged.
    """
    batch, size = goal.shape
    sides, limits = pieces.inequality, pieces.inequality_bound
    assert sides is not None
    assert limits is not None
    equality = pieces.equality if pieces.equality is not None else goal.new_zeros(batch, 0, size)
    equality_bound = pieces.equality_bound if pieces.equality_bound is not None else goal.new_zeros(batch, 0)
    equations = equality.shape[1]
    quadratics = [(q.expand(batch, dim, dim), c.expand(batch, dim), r.expand(batch)) for q, c, r in pieces.quadratics]

    z = torch.zeros_like(goal)
    if quadratics:
        # Within the quadratics the linearised constraints are good guides; far outside they are not.
        z[:, :dim] = torch.stack([c for _, c, _ in quadratics]).mean(0)
    value, jacobian = _functions(z, sides, limits, quadratics, dim, depth)
    slack = (-value).clamp(min=first_slack)
    dual = 1 / slack
    free = goal.new_zeros(batch, equations)
    solved = torch.zeros(batch, dtype=torch.bool, device=goal.device)
    # Equations that repeat or are void must not make the Newton system singular.
    corner = -_REGULAR * torch.eye(equations, dtype=goal.dtype, device=goal.device).expand(batch, -1, -1)
    reach = 1 + (goal.abs() * diagonal).amax(-1)
    # Large coefficients leave rounding errors in the values.
    rounding = goal.new_full((batch,), 1e-12)
    for q, _, _ in quadratics:
        rounding = torch.maximum(rounding, 1e-15 * q.abs().sum((1, 2)))
    # Near the end rounding may drive an iterate away from the solution: the best one counts.
    lowest, best = goal.new_full((batch,), torch.inf), (z, slack, dual)
    for _ in range(_MAX_STEPS):
        stationarity = diagonal * (z - goal) + linear + _times(jacobian.mT, dual) + _times(equality.mT, free)
        primal = value + slack
        balance = _times(equality, z) - equality_bound
        gap = (dual * slack).mean(-1)
        error = primal.abs().amax(-1)
        if equations:
            error = torch.maximum(error, balance.abs().amax(-1))
        # Rounding in the Newton system limits stationarity once the gap has closed.
        precision = torch.where(gap <= 1e-18 * reach, 1e-7, 1e-10)
        merit = torch.maximum(gap / 1e-15, stationarity.abs().amax(-1) / precision) / reach
        merit = torch.maximum(merit, error / rounding)
        better = merit < lowest
        lowest = torch.where(better, merit, lowest)
        best = tuple(torch.where(better[:, None], new, old) for new, old in zip((z, slack, dual), best, strict=True))
        solved |= merit <= 1
        if solved.all():
            break
        hessian = torch.diag_embed(diagonal + 1e-14)
        for index, (q, _, _) in enumerate(quadratics):
            weight = dual[:, sides.shape[1] + index, None, None]
            hessian[:, :dim, :dim] += 2 * weight * q
        matrix = hessian + (jacobian * (dual / slack)[..., None]).mT @ jacobian
        if equations:
            matrix = torch.cat(
                [
                    torch.cat([matrix, equality.transpose(1, 2)], 2),
                    torch.cat([equality, corner], 2),
                ],
                1,
            )
        factors, pivots, singular = torch.linalg.lu_factor_ex(matrix)
        # Multipliers that run away belong to an empty set.
        broken = ((singular > 0) | (dual.amax(-1) > _LARGEST_DUAL)) & ~solved

        state = (slack, dual, primal, balance, jacobian, stationarity, factors, pivots)
        _, _, dslack, ddual = _direction(dual * slack, *state)
        affine = torch.minimum(_longest(slack, dslack), _longest(dual, ddual))[:, None]
        centred = ((dual + affine * ddual) * (slack + affine * dslack)).mean(-1)
        sigma = (centred / gap.clamp(min=1e-300)).clamp(0, 1) ** 3
        dz, dfree, dslack, ddual = _direction(dual * slack + dslack * ddual - (sigma * gap)[:, None], *state)
        length = torch.minimum(_longest(slack, dslack), _longest(dual, ddual)).mul(_BOUNDARY_SHARE).clamp(max=1)
        usable = ~solved & ~broken & torch.isfinite(dz).all(-1) & torch.isfinite(ddual).all(-1)
        if not usable.any():
            break
        length = torch.where(usable, length, torch.zeros_like(length))[:, None]
        zero = torch.zeros_like(length)
        keep = usable[:, None]
        z = z + torch.where(keep, length * dz, zero)
        free = free + torch.where(keep, length * dfree, zero)
        slack = slack + torch.where(keep, length * dslack, zero)
        dual = dual + torch.where(keep, length * ddual, zero)
        value, jacobian = _functions(z, sides, limits, quadratics, dim, depth)
    z, slack, dual = best
    value, _ = _functions(z, sides, limits, quadratics, dim, depth)
    feasible = value.amax(-1) <= 1e-8 + 100 * rounding
    if equations:
        feasible &= (_times(equality, z) - equality_bound).abs().amax(-1) <= 1e-8
    # Rounding may keep the last digits of the stopping rule out of reach at far points.
    near = feasible & ((dual * slack).mean(-1) <= 1e-9 * reach)
    return z, dual, solved | near


def _functions(
    z: Tensor,
    sides: Tensor,
    limits: Tensor,
    quadratics: list[tuple[Tensor, Tensor, Tensor]],
    dim: int,
    depth: int | None,
) -> tuple[Tensor, Tensor]:
    """Values of all inequalities, linear ones first, and their Jacobian."""
    values, rows = [_times(sides, z) - limits], [sides]
    for q, c, r in quadratics:
        offset = z[:, :dim] - c
        image = _times(q, offset)
        value = (image * offset).sum(-1) - r
        row = z.new_zeros(len(z), 1, z.shape[1])
        row[:, 0, :dim] = 2 * image
        if depth is not None:
            value, row[:, 0, depth] = value - z[:, depth], -1.0
        values.append(value[:, None])
        rows.append(row)
    return torch.cat(values, 1), torch.cat(rows, 1)


def _direction(
    complementarity: Tensor,
    slack: Tensor,
    dual: Tensor,
    primal: Tensor,
    balance: Tensor,
    jacobian: Tensor,
    stationarity: Tensor,
    factors: Tensor,
    pivots: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Newton step for z, the multipliers of the equations, the slacks and the multipliers."""
    push = (dual * primal - complementarity) / slack
    right = torch.cat([-stationarity - _times(jacobian.mT, push), -balance], 1)
    step = torch.linalg.lu_solve(factors, pivots, right[..., None])[..., 0]
    dz, dfree = step[:, : jacobian.shape[2]], step[:, jacobian.shape[2] :]
    dslack = -primal - _times(jacobian, dz)
    ddual = -(complementarity + dual * dslack) / slack
    return dz, dfree, dslack, ddual


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Matrix times vector for every row of a batch."""
    return (matrix @ vector[..., None])[..., 0]


def _longest(values: Tensor, change: Tensor) -> Tensor:
    """Longest step in [0, inf) that keeps values positive."""
    ratio = torch.where(change < 0, -values / change.clamp(max=-1e-300), torch.full_like(values, torch.inf))
    return ratio.amin(-1).clamp(max=1e6).clamp(max=1.0 / _BOUNDARY_SHARE)

"""Nearest integer allocation of a fixed total: how many bikes each zone gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from octavo_core.errors import InvalidValueError

__all__ = ["Numbers", "nearest_integer_allocation"]

Numbers = np.ndarray | Sequence[Any] | float | int
"""Real numbers: an array, nested sequences, or one number."""

# Floats of this size no longer tell halves apart.
_LARGEST_TARGET = 1e15
_HALVINGS = 80


def nearest_integer_allocation(
    target: Numbers, total: int, low: Numbers, high: Numbers
) -> Int64[np.ndarray, "*batch parts"]:
    """Integer points with a given sum and bounds that are nearest to real points.

    The objective ``sum_i (n_i - x_i)^2`` is separable and convex, so that a point ``clip(round(x + shift))`` is optimal
    for its own sum, and so is each point reached from it by changing one part by the cheapest unit. The shift brings
    the sum near the total at once and the units do the rest. (Rounding with the largest remainders is not exact where
    the sum of ``x`` is off the total by more than a unit or a bound is met.)

    Args:
        target: Real points x, (..., parts), finite; magnitudes beyond 1e15 count as 1e15.
        total: Wanted sum of every allocation.
        low: Least integer per part, a number or (parts,).
        high: Largest integer per part, a number or (parts,).

    Returns:
        Allocations, of the shape of ``target``. Among equally near points, units go to the first parts.

    Raises:
        InvalidValueError: If ``target`` is not finite, or no integer point has that sum within the bounds.

    Source:
        Greedy marginal allocation (separable convex resource allocation), applied by the environment to actions whose
        sum is off by the tolerance of the feasibility check.
    """
    points = np.asarray(target, dtype=np.float64)
    if points.ndim == 0:
        raise InvalidValueError("an allocation needs at least one part: give an array (..., parts)")
    if not np.isfinite(points).all():
        raise InvalidValueError("the wanted allocation has entries that are not finite; give finite numbers")
    lower = np.broadcast_to(np.ceil(np.asarray(low, dtype=np.float64)), points.shape[-1:])
    upper = np.broadcast_to(np.floor(np.asarray(high, dtype=np.float64)), points.shape[-1:])
    if (lower > upper).any() or not lower.sum() <= total <= upper.sum():
        raise InvalidValueError(
            f"no integer allocation sums to {total} within the bounds, whose sums are {lower.sum():g} and "
            f"{upper.sum():g}; choose a total between them"
        )
    x = points.reshape(-1, points.shape[-1]).clip(-_LARGEST_TARGET, _LARGEST_TARGET)
    allocation = np.clip(np.rint(x), lower, upper)
    missing = total - allocation.sum(axis=1)
    far = np.flatnonzero(np.abs(missing) > x.shape[1])
    if far.size:
        allocation[far] = np.clip(np.rint(x[far] + _shift_below(x[far], total, lower, upper)), lower, upper)
        missing[far] = total - allocation[far].sum(axis=1)
    while (rows := np.flatnonzero(missing)).size:
        step = np.sign(missing[rows])[:, None]
        # Growth of (n - x)^2 by a unit, halved and less a half; the next unit of the same part costs one more.
        room = np.where(step > 0, allocation[rows] < upper, allocation[rows] > lower)
        cost = np.where(room, step * (allocation[rows] - x[rows]), np.inf)
        order = cost.argsort(axis=1, kind="stable")
        sorted_cost = np.take_along_axis(cost, order, axis=1)
        # All units that are no dearer than any part's second one can be given at once.
        given = (sorted_cost <= sorted_cost[:, :1] + 1.0) & (np.arange(x.shape[1]) < np.abs(missing[rows])[:, None])
        units = np.zeros_like(cost)
        np.put_along_axis(units, order, given * step, axis=1)
        allocation[rows] += units
        missing[rows] -= units.sum(axis=1)
    return allocation.reshape(points.shape).astype(np.int64)


def _shift_below(
    x: Float64[np.ndarray, "rows parts"],
    total: int,
    lower: Float64[np.ndarray, " parts"],
    upper: Float64[np.ndarray, " parts"],
) -> Float64[np.ndarray, "rows 1"]:
    """Shift whose rounded and bounded points fall short of the total by hardly more than a unit per part."""
    below = (lower - x).min(axis=1, keepdims=True) - 1.0
    above = (upper - x).max(axis=1, keepdims=True) + 1.0
    held = np.full_like(below, lower.sum())
    for _ in range(_HALVINGS):
        if (total - held <= x.shape[1]).all():
            break
        middle = 0.5 * (below + above)
        count = np.clip(np.rint(x + middle), lower, upper).sum(axis=1, keepdims=True)
        fits = count <= total
        below, above, held = np.where(fits, middle, below), np.where(fits, above, middle), np.where(fits, count, held)
    return below

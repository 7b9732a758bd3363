"""Coefficients now, report later: an optimizer needs the coefficients at every step, and a reader the report at few."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidTypeError
from torch import Tensor

from octavo_config_grad._solver import SAFE_PIVOT
from octavo_config_grad.aggregators import Aggregator, ConFIG
from octavo_config_grad.gramian import accumulation
from octavo_config_grad.info import UpdateInfo, check_finite, nonfinite_losses, skipped_info, update_info

__all__ = ["Solution", "checked_aggregator"]

# Largest number of losses for which plain Python floats are faster than LAPACK behind NumPy.
_PLAIN_SIZE = 8
# |d| / sum_i |alpha_i g_i| below which the sum needs float64, as in ``accumulation``.
_CANCELLATION = 1e-2


def checked_aggregator(aggregator: Any) -> Aggregator:
    """Return the aggregator, ``ConFIG()`` for None.

    Args:
        aggregator: What the caller passed.

    Returns:
        The aggregator to use.

    Raises:
        InvalidTypeError: If it is not an ``Aggregator``.
    """
    if aggregator is None:
        return ConFIG()
    if not isinstance(aggregator, Aggregator):
        raise InvalidTypeError(
            f"aggregator is a {type(aggregator).__name__}; give an Aggregator such as ConFIG(), or from_torchjd(...)"
        )
    return aggregator


class Solution:
    """What an aggregator makes of a Gramian.

    Args:
        aggregator: The aggregator.
        gramian: Dot products of the gradients, float64 on the CPU.
        losses: Loss values.
        gradient_dtype: Precision of the gradients, for ``info.reliable``.
        unit: The Gramian is that of the gradients divided by this.

    Attributes:
        alpha: Coefficients of the update; zero if a gradient is not finite under ``nonfinite="skip"``.
        skipped: Whether that is so.
        accumulate: float64 where the update is a sum of terms that cancel so far that it needs that precision.
        reach: ``sum_j |alpha_j| |g_j|``, which bounds every number of the update and of its partial sums.

    Raises:
        InvalidValueError: If a gradient is not finite under ``nonfinite="raise"``; the loss is named.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        gramian: Float64[Tensor, "losses losses"],
        losses: Sequence[float],
        *,
        gradient_dtype: torch.dtype,
        unit: float = 1.0,
    ) -> None:
        self.skipped = aggregator.nonfinite == "skip" and bool(nonfinite_losses(gramian))
        if self.skipped:
            self.alpha = torch.zeros(len(gramian), dtype=torch.float64)
            self.accumulate, reach = None, 0.0
        elif (plain := _plain_coefficients(aggregator, gramian)) is not None:
            self.alpha, self.accumulate, reach = plain
        else:
            check_finite(gramian)
            self.alpha = aggregator.coefficients(gramian, torch.tensor(losses, dtype=torch.float64))
            self.accumulate, reach = accumulation(gramian, self.alpha)
        self.reach = reach * unit
        self._gramian = gramian
        self._gradient_dtype = gradient_dtype
        self._unit = unit

    @cached_property
    def info(self) -> UpdateInfo:
        """What the update does to each loss."""
        if self.skipped:
            return skipped_info(self._gramian)
        info = update_info(self._gramian, self.alpha, gradient_dtype=self._gradient_dtype)
        return replace(info, norms=info.norms * self._unit, length=info.length * self._unit)


def _plain_coefficients(aggregator: Aggregator, gramian: Tensor) -> tuple[Tensor, torch.dtype | None, float] | None:
    """``alpha``, ``accumulate``, ``reach`` of equal-weight ConFIG for a few clearly independent gradients, else None.

    In plain floats, since between two backward passes every NumPy or torch call costs more than this whole solve: with
    ``R a = 1`` by Cholesky, ``alpha_j = (sum_i |g_i|) / (sum_i a_i) a_j / |g_j|``.
    """
    size = len(gramian)
    if (
        size > _PLAIN_SIZE
        or type(aggregator) is not ConFIG
        or aggregator.direction_weights is not None
        or aggregator.length != "projection"
        or aggregator.rank_policy == "maxmin"
        or aggregator.rtol is not None
    ):
        return None
    products = gramian.tolist()
    norms = [math.sqrt(products[i][i]) if products[i][i] > 0.0 else 0.0 for i in range(size)]
    if not 0.0 < min(norms) <= max(norms) < math.inf:
        return None
    factor: list[list[float]] = []
    solution: list[float] = []
    for i in range(size):
        row: list[float] = []
        for j in range(i):
            known = sum(left * right for left, right in zip(row, factor[j], strict=False))
            row.append((products[i][j] / (norms[i] * norms[j]) - known) / factor[j][j])
        pivot = 1.0 - sum(entry * entry for entry in row)
        if not pivot > SAFE_PIVOT:
            return None
        solution.append((1.0 - sum(left * right for left, right in zip(row, solution, strict=True))) / math.sqrt(pivot))
        factor.append([*row, math.sqrt(pivot)])
    for i in reversed(range(size)):
        known = sum(factor[k][i] * solution[k] for k in range(i + 1, size))
        solution[i] = (solution[i] - known) / factor[i][i]
    scale = sum(norms) / sum(solution)
    alpha = torch.tensor([scale * a / norm for a, norm in zip(solution, norms, strict=True)], dtype=torch.float64)
    # |d|^2 = scale^2 a^T R a = scale^2 sum_i a_i, to be compared with the sum of the |alpha_i g_i|.
    total = sum(map(abs, solution))
    cancels = sum(solution) < _CANCELLATION**2 * total**2
    return alpha, torch.float64 if cancels else None, scale * total

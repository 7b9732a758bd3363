"""What a combined update does to each loss, for any coefficients."""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_config_grad._compile import outside_graphs
from octavo_config_grad._solver import (
    cosine_matrix,
    default_rtol,
    minimum_norm_coefficients,
    numerical_rank,
)
from octavo_config_grad.arguments import check_number

__all__ = ["UpdateInfo", "update_info"]


@dataclass(frozen=True, eq=False)
class UpdateInfo:
    """What one combined update does to each loss. All tensors are float64 on the CPU.

    Attributes:
        alpha: Coefficients of the update ``d = sum_j alpha_j g_j``.
        norms: Gradient norms ``|g_i|``.
        cosines: Cosines between each gradient and ``d``; zero where the gradient or ``d`` is zero.
        cosine_matrix: Pairwise cosines of the gradients; rows and columns of zero gradients are zero.
        rank: Number of linearly independent gradients.
        min_cos: Smallest cosine over the non-zero gradients (0 when all are zero).
        conflict: Whether the update fails to decrease some loss whose gradient is not zero: ``min_cos <= 0``, up to
            the rounding error of the cosine.
        length: Norm of the update ``|d|``.
        pareto_stationary: Whether zero lies in the convex hull of the unit gradients, so that no common descent
            direction exists.
        reliable: Whether the sign of every cosine is resolved at the precision of the gradients: false when a cosine
            with a non-zero gradient, or ``|d| / sum_j |alpha_j g_j|``, is below ``100 eps`` of their dtype
            (``sqrt(eps)`` for half types, where 100 eps would exceed ordinary cosines) or below what a float64 Gramian
            resolves.
        skipped: Whether zero replaces the update because a gradient is not finite (``nonfinite="skip"``).
    """

    alpha: Float64[Tensor, " losses"]
    norms: Float64[Tensor, " losses"]
    cosines: Float64[Tensor, " losses"]
    cosine_matrix: Float64[Tensor, "losses losses"]
    rank: int
    min_cos: float
    conflict: bool
    length: float
    pareto_stationary: bool
    reliable: bool
    skipped: bool = False


@outside_graphs
def update_info(
    gramian: Tensor,
    alpha: Tensor,
    *,
    rtol: float | None = None,
    gradient_dtype: torch.dtype = torch.float64,
) -> UpdateInfo:
    """Report what the update ``sum_j alpha_j g_j`` does to each loss, whichever method chose ``alpha``.

    Args:
        gramian: Dot products of the gradients, (m, m), finite, best in float64.
        alpha: Coefficients of the update, (m,), finite.
        rtol: Eigenvalues of the cosine matrix below ``rtol`` times the largest count as zero; None stands for
            ``10 m eps(float64)``.
        gradient_dtype: Precision of the gradients behind the Gramian, for ``reliable``.

    Returns:
        The report. An update shorter than about ``sqrt(10 m eps)`` of ``sum_j |alpha_j g_j|`` is below the resolution
        of the Gramian and counts as zero.

    Raises:
        InvalidValueError: If the Gramian is not square or not finite, ``alpha`` is not finite or of another length, or
            ``rtol`` lies outside [0, 1).
        InvalidTypeError: If the Gramian is not real floating point.
    """
    entries = check_gramian(gramian)
    check_finite(entries)
    size = len(entries)
    rtol = check_rtol(rtol, size)
    coefficients = finite_vector(alpha, size, "alpha")
    norms, nonzero, cosines = cosine_matrix(entries.numpy())
    unit_coefficients = coefficients * norms
    projections = cosines @ unit_coefficients
    squared = float(unit_coefficients @ projections)
    update_norm, update_cosines = 0.0, np.zeros(size)
    if squared > default_rtol(size) * np.abs(unit_coefficients).sum() ** 2:
        update_norm = math.sqrt(squared)
        update_cosines = projections / update_norm
    rank = numerical_rank(cosines[np.ix_(nonzero, nonzero)], rtol)
    return report(norms, cosines, coefficients, update_cosines, update_norm, rank, rtol, gradient_dtype)


def report(
    norms: Float64[np.ndarray, " losses"],
    cosines: Float64[np.ndarray, "losses losses"],
    alpha: Float64[np.ndarray, " losses"],
    update_cosines: Float64[np.ndarray, " losses"],
    update_norm: float,
    rank: int,
    rtol: float,
    gradient_dtype: torch.dtype,
) -> UpdateInfo:
    """Complete the report of an update whose cosines and norm are known.

    Args:
        norms: Gradient norms.
        cosines: Pairwise cosines of the gradients.
        alpha: Coefficients of the update.
        update_cosines: Cosines between the gradients and the update.
        update_norm: Norm of the update.
        rank: Number of linearly independent gradients.
        rtol: Relative eigenvalue cut.
        gradient_dtype: Precision of the gradients.

    Returns:
        The report.
    """
    size = len(norms)
    nonzero = norms > 0.0
    relevant = update_cosines[nonzero]
    shares = np.abs(alpha) * norms
    # (R b)_i is known to m eps (|R| |b|)_i: a cosine closer to zero than that has no sign.
    noise = default_rtol(size) * (np.abs(cosines) @ shares) / update_norm if update_norm > 0.0 else np.zeros(size)
    conflict = bool((relevant <= noise[nonzero]).any())
    stationary = len(relevant) == 0
    if conflict and rank < len(relevant):
        # Only dependent gradients without a common descent direction can have zero in their hull.
        block = cosines[np.ix_(nonzero, nonzero)]
        _, stationary = minimum_norm_coefficients(block, np.ones(len(block)))
    eps = torch.finfo(gradient_dtype).eps
    resolution = max(min(100.0 * eps, math.sqrt(eps)), math.sqrt(default_rtol(size)))
    return UpdateInfo(
        alpha=torch.from_numpy(alpha),
        norms=torch.from_numpy(norms),
        cosines=torch.from_numpy(update_cosines),
        cosine_matrix=torch.from_numpy(cosines),
        rank=rank,
        min_cos=float(relevant.min()) if len(relevant) else 0.0,
        conflict=conflict,
        length=update_norm,
        pareto_stationary=stationary,
        reliable=bool((np.abs(relevant) >= resolution).all() and update_norm >= resolution * shares.sum()),
    )


def skipped_info(gramian: Float64[Tensor, "losses losses"]) -> UpdateInfo:
    """Report of the zero update that replaces one with gradients that are not finite.

    Args:
        gramian: Dot products of the gradients.

    Returns:
        The report, with ``skipped`` set and nothing claimed.
    """
    zeros = torch.zeros(len(gramian), dtype=torch.float64)
    return UpdateInfo(
        alpha=zeros,
        norms=gramian.diagonal().sqrt(),
        cosines=zeros.clone(),
        cosine_matrix=torch.full_like(gramian, math.nan),
        rank=0,
        min_cos=0.0,
        conflict=False,
        length=0.0,
        pareto_stationary=False,
        reliable=False,
        skipped=True,
    )


def check_gramian(gramian: Tensor) -> Float64[Tensor, "losses losses"]:
    """Refuse what cannot be a Gramian.

    Args:
        gramian: What the caller passed.

    Returns:
        The same numbers in float64 on the CPU, without a copy where they are already.

    Raises:
        InvalidValueError: If it is not a square matrix with at least one row.
        InvalidTypeError: If it is not real floating point.
    """
    if gramian.dim() != 2 or gramian.shape[0] != gramian.shape[1] or len(gramian) == 0:
        raise InvalidValueError(
            f"a Gramian is a square matrix with one row per loss, but the shape given is {tuple(gramian.shape)}"
        )
    if not gramian.dtype.is_floating_point:
        raise InvalidTypeError(f"the Gramian has dtype {gramian.dtype}: it must be real floating point, best float64")
    return gramian.detach().to("cpu", torch.float64)


def nonfinite_losses(gramian: Float64[Tensor, "losses losses"]) -> list[int]:
    """Losses whose gradient holds NaN or infinity, which shows on the diagonal of the Gramian.

    Args:
        gramian: Dot products of the gradients.

    Returns:
        Their indices, ascending.
    """
    return [loss for loss, value in enumerate(gramian.diagonal().tolist()) if not math.isfinite(value)]


def check_finite(gramian: Float64[Tensor, "losses losses"]) -> None:
    """Refuse a Gramian of gradients that are not finite.

    Args:
        gramian: Dot products of the gradients.

    Raises:
        InvalidValueError: Naming the losses.
    """
    if math.isfinite(float(gramian.sum())):
        return
    bad = nonfinite_losses(gramian)
    if bad:
        raise InvalidValueError(
            f"the gradient of loss {', '.join(map(str, bad))} is not finite: find where it overflows, or pass "
            "nonfinite='skip' to the aggregator to skip such steps"
        )
    if not torch.isfinite(gramian).all():
        raise InvalidValueError("the Gramian is not finite outside its diagonal")


def check_rtol(rtol: Any, size: int) -> float:
    """Default or checked relative eigenvalue cut.

    Args:
        rtol: What the caller passed.
        size: Number of losses.

    Returns:
        The cut.

    Raises:
        InvalidValueError: If it lies outside [0, 1).
        InvalidTypeError: If it is not a number.
    """
    if rtol is None:
        return default_rtol(size)
    check_number("rtol", rtol)
    if not 0.0 <= rtol < 1.0:
        raise InvalidValueError(f"rtol={rtol} must lie in [0, 1)")
    return float(rtol)


def finite_vector(values: Any, size: int, name: str) -> Float64[np.ndarray, " losses"]:
    """One finite number per loss.

    Args:
        values: What the caller passed.
        size: Number of losses.
        name: Name of the argument, for the error.

    Returns:
        The numbers in float64.

    Raises:
        InvalidValueError: If their number is another, or one is not finite.
        InvalidTypeError: If they are not numbers.
    """
    array = real_array(values, name)
    if array.shape != (size,):
        raise InvalidValueError(
            f"{name} has shape {array.shape}, but there are {size} losses: give one number for each"
        )
    if not np.isfinite(array).all():
        loss = int(np.flatnonzero(~np.isfinite(array))[0])
        raise InvalidValueError(f"{name} is {array[loss]} for loss {loss}: it must be finite")
    return array.copy()


def real_array(values: Any, name: str) -> Float64[np.ndarray, ...]:
    """Numbers as an array.

    Args:
        values: What the caller passed.
        name: Name of the argument, for the error.

    Returns:
        The numbers in float64.

    Raises:
        InvalidTypeError: If they are not numbers.
    """
    try:
        return torch.as_tensor(values, dtype=torch.float64).detach().cpu().numpy()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidTypeError(
            f"{name}={reprlib.repr(values)} is a {type(values).__name__}; give one number for each loss"
        ) from error

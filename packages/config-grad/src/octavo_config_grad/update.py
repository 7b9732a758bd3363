"""The ConFIG update in Gramian space: m x m numbers decide a direction in the space of all parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float64
from octavo_core.errors import InvalidStateError, InvalidValueError
from torch import Tensor

from octavo_config_grad._compile import outside_graphs
from octavo_config_grad._solver import cosine_matrix, least_squares_coefficients, minimum_norm_coefficients
from octavo_config_grad.gramian import accumulation, scaled_gramian, weighted_sum
from octavo_config_grad.info import (
    UpdateInfo,
    check_finite,
    check_gramian,
    check_rtol,
    finite_vector,
    report,
    update_info,
)
from octavo_config_grad.length import LengthModel, check_length_model, update_length
from octavo_config_grad.overflow import overflow_error, overflows

__all__ = ["RANK_POLICIES", "UpdateInfo", "config_update", "config_weights", "update_info"]

RANK_POLICIES = ("lstsq", "maxmin", "error")
"""What to do with linearly dependent gradients; see ``config_weights``."""


@outside_graphs
def config_weights(
    gramian: Tensor,
    direction_weights: Any = None,
    *,
    length: LengthModel = "projection",
    rank_policy: str = "lstsq",
    rtol: Any = None,
    gradient_dtype: torch.dtype = torch.float64,
) -> tuple[Float64[Tensor, " losses"], UpdateInfo]:
    """Coefficients ``alpha`` of the conflict-free update ``g_ConFIG = sum_j alpha_j g_j``.

    With the cosine matrix ``R``, ``a = R^+ w``, ``|x|^2 = a^T R a`` and the length ``l``:
    ``alpha_j = l a_j / (|x| |g_j|)``. For independent gradients the cosines are positive and in the ratio of the
    weights. A zero gradient is left out and gets the coefficient 0. The m x m problem is solved in float64 on the CPU.

    Args:
        gramian: Dot products ``K = G G^T`` of the gradients, (m, m), best in float64 (see ``gramian``).
        direction_weights: Direction weights w > 0, one per loss; None stands for equal weights.
        length: Length model: a name in ``LENGTH_MODELS``, the index of a loss to track, or a function
            ``(norms, cosines) -> length``.
        rank_policy: For linearly dependent gradients. ``"lstsq"`` (the paper) takes the minimum-norm least-squares
            solution and reports ``conflict``; ``"maxmin"`` takes the direction with the largest ``min_i cos_i / w_i``,
            which conflicts with no loss whenever a common descent direction exists, and zero otherwise; ``"error"``
            raises. ``"maxmin"`` agrees with ``"lstsq"`` where all least-squares coefficients of independent gradients
            are positive.
        rtol: Eigenvalues of R below ``rtol`` times the largest count as zero, in [0, 1); None stands for
            ``10 m eps(float64)``, whatever the number of parameters.
        gradient_dtype: Precision of the gradients behind the Gramian, for ``info.reliable``.

    Returns:
        ``alpha`` in float64 on the device of ``gramian``, and the report.

    Raises:
        InvalidValueError: If the Gramian is not square or not finite (the loss is named), w is not positive, not finite
            or of another length, or an option is unknown.
        InvalidTypeError: If the Gramian is not real floating point, or an option is of another type.
        InvalidStateError: If ``rank_policy="error"`` and the gradients are dependent.

    Source:
        Paper Eq. 1-3, with ``x = U^+ w = U^T R^+ w``. ``"maxmin"`` is beyond the paper, whose claim of positive cosines
        fails for linearly dependent gradients.
    """
    entries = check_gramian(gramian)
    size = len(entries)
    check_length_model(length, size)
    check_rank_policy(rank_policy)
    check_finite(entries)
    weights = _positive_weights(direction_weights, size)
    rtol = check_rtol(rtol, size)

    norms, nonzero, cosines = cosine_matrix(entries.numpy())
    block = cosines if nonzero.all() else cosines[np.ix_(nonzero, nonzero)]
    unit_coefficients, projections, rank = _direction(block, weights[nonzero], rank_policy, rtol)
    squared = float(unit_coefficients @ projections)

    alpha, update_cosines, update_norm = np.zeros(size), np.zeros(size), 0.0
    if squared > 0.0:
        direction_norm = math.sqrt(squared)
        update_cosines[nonzero] = projections / direction_norm
        signed_length = update_length(length, norms, update_cosines)
        alpha[nonzero] = signed_length / direction_norm * unit_coefficients / norms[nonzero]
        update_cosines *= np.sign(signed_length)
        update_norm = abs(signed_length)
    info = report(norms, cosines, alpha, update_cosines, update_norm, rank, rtol, gradient_dtype)
    return info.alpha.to(gramian.device, copy=True), info


@overload
def config_update(
    gradients: Tensor | Sequence[Tensor],
    direction_weights: Tensor | Sequence[float | int] | None = None,
    *,
    length: LengthModel = "projection",
    rank_policy: str = "lstsq",
    rtol: float | None = None,
) -> Tensor: ...


@overload
def config_update(
    gradients: Sequence[Sequence[Tensor]],
    direction_weights: Tensor | Sequence[float | int] | None = None,
    *,
    length: LengthModel = "projection",
    rank_policy: str = "lstsq",
    rtol: float | None = None,
) -> list[Tensor]: ...


@outside_graphs
def config_update(
    gradients: Any,
    direction_weights: Any = None,
    *,
    length: LengthModel = "projection",
    rank_policy: str = "lstsq",
    rtol: Any = None,
) -> Tensor | list[Tensor]:
    """Conflict-free combination of the gradients of several losses.

    Args:
        gradients: Matrix (m, N), sequence of m equally shaped tensors, or sequence over losses of sequences with one
            tensor per parameter.
        direction_weights: As for ``config_weights``.
        length: As for ``config_weights``.
        rank_policy: As for ``config_weights``.
        rtol: As for ``config_weights``.

    Returns:
        The update, to be used in place of the gradient of the summed loss: a vector (N,) for a matrix, a tensor of the
        shape of one gradient for a sequence of tensors, or a list with one tensor per parameter.

    Raises:
        InvalidValueError: As for ``gramian`` and ``config_weights``; in particular if a gradient is not finite, or the
            update leaves the range of its dtype (``ConFIG(nonfinite="skip")`` returns zero instead).
        InvalidTypeError: As for ``gramian`` and ``config_weights``.
        InvalidStateError: As for ``config_weights``.

    Source:
        Paper Eq. 1-3; takes the place of ``conflictfree.grad_operator.ConFIG_update``.

    Example:
        >>> config_update(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        tensor([3.5000, 3.5000])
    """
    product, unit = scaled_gramian(gradients)
    product = product.cpu()
    alpha, _ = config_weights(product, direction_weights, length=length, rank_policy=rank_policy, rtol=rtol)
    accumulate, reach = accumulation(product, alpha)
    update = weighted_sum(gradients, alpha, accumulate=accumulate)
    if overflows(update, reach * unit):
        raise overflow_error()
    return update


def check_rank_policy(rank_policy: str) -> None:
    """Refuse a rank policy that does not exist.

    Args:
        rank_policy: What the caller passed.

    Raises:
        InvalidValueError: If it is not one of ``RANK_POLICIES``.
    """
    if rank_policy not in RANK_POLICIES:
        raise InvalidValueError(f"unknown rank policy {rank_policy!r}: use one of {', '.join(RANK_POLICIES)}")


def _direction(
    cosines: Float64[np.ndarray, "losses losses"],
    weights: Float64[np.ndarray, " losses"],
    rank_policy: str,
    rtol: float,
) -> tuple[Float64[np.ndarray, " losses"], Float64[np.ndarray, " losses"], int]:
    """Coefficients a of ``x = U^T a``, the projections ``U x``, and the rank, for non-zero gradients."""
    size = len(weights)
    if size == 0:
        return np.zeros(0), np.zeros(0), 0
    coefficients, rank = least_squares_coefficients(cosines, weights, rtol)
    if rank < size and rank_policy == "error":
        raise InvalidStateError(
            f"the {size} non-zero gradients span only {rank} dimensions, where equal cosines need not exist: use "
            "rank_policy='lstsq' or 'maxmin', or leave out dependent losses"
        )
    if rank_policy == "maxmin" and (rank < size or coefficients.min() <= 0.0):
        coefficients, _ = minimum_norm_coefficients(cosines, weights)
    elif rank == size:
        # U x = w holds exactly, and R a would lose digits to cancellation when gradients are nearly opposite.
        return coefficients, weights, rank
    return coefficients, cosines @ coefficients, rank


def _positive_weights(values: Any, size: int) -> Float64[np.ndarray, " losses"]:
    if values is None:
        return np.ones(size)
    weights = finite_vector(values, size, "direction_weights")
    if weights.min() <= 0.0:
        loss = int(weights.argmin())
        raise InvalidValueError(
            f"the direction weight of loss {loss} is {weights[loss]:g}: it must be positive; to ignore a loss, leave "
            "its gradient out"
        )
    return weights

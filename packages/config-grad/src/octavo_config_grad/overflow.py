"""Updates that leave the range of their dtype although every gradient is finite."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from octavo_core.errors import InvalidValueError
from torch import Tensor

__all__ = ["SAFE_REACH", "overflow_error", "overflows"]

SAFE_REACH = torch.finfo(torch.float16).max / 2
"""Reach up to which no update overflows, whatever its dtype; beyond it the dtype decides."""


def overflows(update: Tensor | Sequence[Tensor], reach: float) -> bool:
    """Whether a combined update is not finite; its numbers are read only where its reach allows that.

    Args:
        update: The update, a tensor or one per parameter.
        reach: ``sum_j |alpha_j| |g_j|``, which bounds every number of the update and of its partial sums.

    Returns:
        Whether a number is infinite or NaN.
    """
    # Half of each largest number leaves room for rounding; the comparisons are false for NaN.
    if reach <= SAFE_REACH:
        return False
    tensors = [update] if isinstance(update, Tensor) else update
    return any(
        not reach <= torch.finfo(tensor.dtype).max / 2 and not bool(tensor.isfinite().all()) for tensor in tensors
    )


def overflow_error() -> InvalidValueError:
    """Build the error for an update that overflows.

    Returns:
        The error, ready to raise.
    """
    return InvalidValueError(
        "the combined update is not finite although every gradient is: it leaves the range of its dtype; scale the "
        "losses down, or pass nonfinite='skip' to leave such steps out"
    )

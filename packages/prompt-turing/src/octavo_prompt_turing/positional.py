"""The positional features pe0 to pe3, computed without cancellation."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["positional_features"]


def positional_features(
    positions: Int[Tensor, "*shape"], dtype: torch.dtype = torch.float64
) -> Float[Tensor, "*shape 4"]:
    """Compute pe0 = 1/i, pe1 = 1 - cos of the angle between (i, 1) and (i + 1, 1), and (pe2, pe3) = (i, 1)/norm.

    Args:
        positions: Positions i, counted from 1; at most 2**24.
        dtype: Floating-point type.

    Returns:
        The four features, pe1 with full relative precision.

    Source:
        Paper, construction. With P = sqrt((i^2 + 1)((i + 1)^2 + 1)) and Q = i(i + 1) + 1 one has P^2 - Q^2 = 1, so
        pe1 = 1 - Q/P = 1/(P (P + Q)), which does not cancel.
    """
    i = positions.to(dtype)
    norm, following = (i * i + 1).sqrt(), ((i + 1) * (i + 1) + 1).sqrt()
    p, q = norm * following, i * (i + 1) + 1
    return torch.stack([1 / i, 1 / (p * (p + q)), i / norm, 1 / norm], dim=-1)

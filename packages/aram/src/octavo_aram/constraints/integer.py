"""Integer allocations: whole units per component with a fixed total and bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_aram.constraints._user import checked_count, checked_dim
from octavo_aram.constraints.base import Constraint
from octavo_aram.envs.allocation import nearest_integer_allocation

__all__ = ["IntegerAllocation"]


class IntegerAllocation(Constraint):
    """Whole units with a fixed total: ``scale * a + offset`` is an integer vector within bounds that sums to ``total``.

    Args:
        total: Number of units.
        lower: Least units per component.
        upper: Most units per component.
        action_dim: Number of components; the bounds are mapped to [-1, 1].

    Raises:
        InvalidValueError: If the bounds do not admit the total or are equal.
        InvalidTypeError: If a number of units is not whole.

    Source:
        Beyond the paper: the exact set behind BSS, which it relaxes to a band.
    """

    exact_projection = True
    convex = False
    has_volume = False

    def __init__(self, total: Any, lower: Any, upper: Any, *, action_dim: Any) -> None:
        self.action_dim = checked_dim(action_dim)
        total, lower, upper = (
            checked_count(value, name, least=None)
            for name, value in (("total", total), ("lower", lower), ("upper", upper))
        )
        if lower >= upper or not lower * self.action_dim <= total <= upper * self.action_dim:
            raise InvalidValueError(
                f"{self.action_dim} components of {lower} to {upper} units cannot hold {total} units in all; "
                "give lower < upper and a total between action_dim * lower and action_dim * upper"
            )
        self.total, self.lower, self.upper = total, lower, upper
        self.scale, self.offset = (upper - lower) / 2, (upper + lower) / 2

    def counts(self, act: Any) -> np.ndarray:
        """Give the nearest allocations of actions.

        Args:
            act: Actions [d] or [batch, d].

        Returns:
            Units, as integers.
        """
        values = act.detach().cpu().numpy() if isinstance(act, Tensor) else np.asarray(act)
        return nearest_integer_allocation(values * self.scale + self.offset, self.total, self.lower, self.upper)

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch functions"]:
        units = act * self.scale + self.offset
        fraction = (units - units.round()).abs() / self.scale
        total = (units.round().sum(-1, keepdim=True) - self.total).abs() / self.scale
        return torch.cat([fraction, total], -1)

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        counts = torch.as_tensor(self.counts(act), dtype=act.dtype, device=act.device)
        return ((counts - self.offset) / self.scale).clamp(-1, 1)

"""Power limits: weighted sums of absolute values, or of positive parts, with joint velocities as weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_aram.constraints._dual_search import project_knapsack
from octavo_aram.constraints._user import checked_dim, checked_indices, checked_number, vector
from octavo_aram.constraints.base import Constraint, ConvexPieces

__all__ = ["Orthoplex", "PositivePower"]


class _Weighted(Constraint):
    """A set given by one weight per component, fixed or read from the observation, and a limit."""

    exact_projection = True
    # Whether a limit of zero leaves no volume.
    _flat_at_zero = False

    def __init__(
        self,
        w_idx: Any = None,
        limit: Any = 1.0,
        *,
        weights: Any = None,
    ) -> None:
        if (w_idx is None) == (weights is None):
            raise InvalidValueError("give either w_idx, the observation entries used as weights, or fixed weights")
        self.limit = checked_number(limit, "limit", least=0.0, hint="leaves the feasible set empty")
        self.w_idx = None if w_idx is None else checked_indices(w_idx, "w_idx")
        self.weights = None if weights is None else vector(weights, "weights")
        self.needs_obs = self.w_idx is not None
        self.min_obs_dim = int(self.w_idx.max()) + 1 if self.w_idx is not None else 0
        self.has_volume = self.limit > 0 or self.weights is None or not self._flat_at_zero or not np.any(self.weights)
        self.action_dim = checked_dim(len(self.w_idx if self.w_idx is not None else self.weights))  # ty: ignore[invalid-argument-type]

    def _weights(self, obs: Tensor | None, like: Tensor) -> Tensor:
        if self.w_idx is None:
            return torch.as_tensor(self.weights, dtype=like.dtype, device=like.device).expand_as(like)
        assert obs is not None
        return obs[:, self.w_idx]

    def _limits(self, like: Tensor) -> Tensor:
        return like.new_full((len(like),), self.limit)

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        return torch.zeros_like(act)


class Orthoplex(_Weighted):
    """A weighted cross-polytope: ``sum |w_i a_i| <= limit``.

    Args:
        w_idx: Indices of the observation entries that are the weights, one per action component.
        limit: Right-hand side >= 0.
        weights: Fixed weights instead of ``w_idx``.

    Raises:
        InvalidValueError: If the limit is negative, or not exactly one of ``w_idx`` and ``weights`` is given.

    Source:
        HC+O20, An+O30 and the like of the benchmark; projection by soft thresholding (section 5).
    """

    _flat_at_zero = True

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch 1"]:
        return (self._weights(obs, act) * act).abs().sum(-1, keepdim=True) - self.limit

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        side = _side(act)
        return side * project_knapsack(side * act, self._weights(obs, act).abs(), 0.0, 1.0, self._limits(act))

    def _pieces(self, obs: Tensor | None, batch: int, like: Tensor) -> ConvexPieces:
        dim = self.action_dim
        weights = torch.diag_embed(self._weights(obs, like.new_zeros(batch, dim)).abs())
        eye = torch.eye(dim, dtype=like.dtype, device=like.device).expand(batch, dim, dim)
        total = torch.cat([like.new_zeros(batch, 1, dim), like.new_ones(batch, 1, dim)], 2)
        sides = torch.cat([torch.cat([weights, -eye], 2), torch.cat([-weights, -eye], 2), total], 1)
        bound = torch.cat([like.new_zeros(batch, 2 * dim), self._limits(sides)[:, None]], 1)
        return ConvexPieces(lifted=dim, inequality=sides, inequality_bound=bound)


class PositivePower(_Weighted):
    """A limit on delivered power: ``sum max(w_i a_i, 0) <= limit``.

    Args:
        w_idx: Indices of the observation entries that are the weights, one per action component.
        limit: Right-hand side >= 0.
        weights: Fixed weights instead of ``w_idx``.

    Raises:
        InvalidValueError: If the limit is negative, or not exactly one of ``w_idx`` and ``weights`` is given.

    Source:
        H+M10, W+M10 and the like of the benchmark; only components with ``w_i a_i > 0`` are thresholded (section 5).
    """

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch 1"]:
        return (self._weights(obs, act) * act).clamp(min=0).sum(-1, keepdim=True) - self.limit

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        weights = self._weights(obs, act)
        # By signs: the product of two small numbers may vanish.
        delivers = weights.sign() * act.sign() > 0
        side = _side(act)
        return side * project_knapsack(side * act, weights.abs() * delivers, 0.0, 1.0, self._limits(act))

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        # With a limit of 0 the origin lies on the border; half way against the motion is inside.
        return torch.zeros_like(act) if self.limit > 0 else -0.5 * self._weights(obs, act).sign()

    def _pieces(self, obs: Tensor | None, batch: int, like: Tensor) -> ConvexPieces:
        dim = self.action_dim
        weights = torch.diag_embed(self._weights(obs, like.new_zeros(batch, dim)))
        eye = torch.eye(dim, dtype=like.dtype, device=like.device).expand(batch, dim, dim)
        zero = torch.zeros_like(eye)
        total = torch.cat([like.new_zeros(batch, 1, dim), like.new_ones(batch, 1, dim)], 2)
        sides = torch.cat([torch.cat([weights, -eye], 2), torch.cat([zero, -eye], 2), total], 1)
        bound = torch.cat([like.new_zeros(batch, 2 * dim), self._limits(sides)[:, None]], 1)
        return ConvexPieces(lifted=dim, inequality=sides, inequality_bound=bound)


def _side(act: Tensor) -> Tensor:
    """Signs with 1 at zero, where the projection is the identity and its derivative must be 1."""
    return 1.0 - 2.0 * (act < 0)

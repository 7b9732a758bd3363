"""Linear inequalities and a fixed sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from octavo_core.errors import InvalidValueError
from torch import Tensor

from octavo_aram.constraints._dual_search import project_knapsack
from octavo_aram.constraints._polytope import chebyshev_center, project_polytope
from octavo_aram.constraints._user import checked_count, checked_dim, checked_number, from_user, numbers, vector
from octavo_aram.constraints.base import Constraint, ConvexPieces, note_qp

__all__ = ["LinearInequality", "SumEquality"]

# Half widths below this count as none in programs, whose precision is about a tenth of it.
_THINNEST_BAND = 1e-8


class LinearInequality(Constraint):
    """A polytope within the box: ``A a <= b``.

    Args:
        matrix: A as [rows, d] (or [d] for one row), or a function of float64 NumPy observations [batch, obs] that
            returns [batch, rows, d]; projections and violations have no gradient with respect to what it reads.
        bound: b as [rows] (or a number), or a function that returns [batch, rows].
        action_dim: Number of components, needed if ``matrix`` is a function.
        min_obs_dim: Least number of observation entries that the functions read.

    Raises:
        InvalidValueError: If shapes do not fit, a number is not finite or a fixed polytope is empty.

    Source:
        NSFnet's link capacities (table of constraints); HC+MA of the omron-sinicx benchmark.
    """

    def __init__(
        self,
        matrix: Any,
        bound: Any,
        *,
        action_dim: Any = None,
        min_obs_dim: Any = 0,
    ) -> None:
        self.needs_obs = callable(matrix) or callable(bound)
        self.min_obs_dim = checked_count(min_obs_dim, "min_obs_dim") if self.needs_obs else 0
        self.matrix, self.bound = matrix, bound
        if callable(matrix):
            if action_dim is None:
                raise InvalidValueError("give action_dim: the matrix is a function, so its size is not known yet")
            self.action_dim = checked_dim(action_dim)
        else:
            fixed = np.atleast_2d(numbers(matrix, "matrix"))
            if fixed.ndim != 2 or fixed.shape[0] == 0:
                raise InvalidValueError(f"matrix has shape {fixed.shape}; give [rows, action_dim]")
            self.matrix, self.action_dim = fixed, checked_dim(fixed.shape[1])
            if action_dim is not None and action_dim != self.action_dim:
                raise InvalidValueError(f"matrix has {self.action_dim} columns but action_dim={action_dim}")
        if not callable(bound):
            self.bound = vector(np.atleast_1d(numbers(bound, "bound")), "bound")
        self._center: np.ndarray | None = None
        if isinstance(self.matrix, np.ndarray):
            self.exact_projection = len(self.matrix) == 1
            if isinstance(self.bound, np.ndarray):
                if self.bound.shape != (len(self.matrix),):
                    raise InvalidValueError(
                        f"matrix has {len(self.matrix)} rows and bound {len(self.bound)} entries; give as many of each"
                    )
                self._center = chebyshev_center(self.matrix, self.bound)[0]

    def coefficients(
        self, obs: Float[Tensor, "batch obs"] | None, batch: int, like: Tensor
    ) -> tuple[Float[Tensor, "batch rows d"], Float[Tensor, "batch rows"]]:
        """Give A and b for every state.

        Args:
            obs: Raw observations, or ``None``.
            batch: Number of states.
            like: Tensor whose dtype and device to use.

        Returns:
            A and b.

        Raises:
            InvalidValueError: If a function returns shapes that do not fit.
        """
        parts = []
        for values in (self.matrix, self.bound):
            if callable(values):
                parts.append(from_user(values, obs, like))
            else:
                fixed = torch.as_tensor(values, dtype=like.dtype, device=like.device)
                parts.append(fixed.expand(batch, *fixed.shape))
        matrix, bound = parts
        if matrix.shape != (batch, matrix.shape[1], self.action_dim) or bound.shape != matrix.shape[:2]:
            raise InvalidValueError(
                f"A has shape {tuple(matrix.shape)} and b {tuple(bound.shape)} for {batch} states; "
                f"give [batch, rows, {self.action_dim}] and [batch, rows]"
            )
        return matrix, bound

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch rows"]:
        matrix, bound = self.coefficients(obs, len(act), act)
        return torch.einsum("bmd,bd->bm", matrix, act) - bound

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        matrix, bound = self.coefficients(obs, len(act), act)
        if matrix.shape[1] == 1:
            side = torch.where(matrix[:, 0] < 0, -1.0, 1.0).to(act.dtype)
            return project_knapsack(act * side, matrix[:, 0].abs(), -1.0, 1.0, bound[:, 0]) * side
        projected, solved = project_polytope(act, matrix, bound)
        note_qp(solved)
        return projected

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        if self._center is not None:
            return torch.as_tensor(self._center, dtype=act.dtype, device=act.device).expand_as(act)
        matrix, bound = (x.cpu().numpy() for x in self.coefficients(obs, len(act), act))
        centers = [chebyshev_center(a, b)[0] for a, b in zip(matrix, bound, strict=True)]
        return torch.as_tensor(np.array(centers).reshape(act.shape), dtype=act.dtype, device=act.device)

    def _pieces(self, obs: Tensor | None, batch: int, like: Tensor) -> ConvexPieces:
        matrix, bound = self.coefficients(obs, batch, like)
        return ConvexPieces(inequality=matrix, inequality_bound=bound)


class SumEquality(Constraint):
    """A fixed total: ``sum a_i = total``, checked within a band.

    Projection and interior point meet the total exactly; ``tol`` only widens the check, as in the official one. An
    action within the band is feasible, yet projecting it moves it to the exact total. Within an
    :class:`~octavo_aram.constraints.combine.Intersection` the whole band counts: projections go to its nearest point.

    Args:
        total: The sum, reachable within [-1, 1]^d.
        tol: Half width of the band that counts as feasible, >= 0.
        action_dim: Number of components.

    Raises:
        InvalidValueError: If the sum is out of reach or the tolerance is negative.

    Source:
        BSS3z and BSS5z of the benchmark; ``a = clip(a0 + l)`` (section 5).
    """

    exact_projection = True

    def __init__(self, total: Any, tol: Any = 0.0, *, action_dim: Any) -> None:
        self.action_dim = checked_dim(action_dim)
        self.total = checked_number(total, "total")
        self.tol = checked_number(tol, "tol", least=0.0, hint="is no half width of a band")
        if abs(self.total) > self.action_dim:
            raise InvalidValueError(
                f"the feasible set is empty: {self.action_dim} components in [-1, 1] cannot sum to {total}"
            )
        self.has_volume = self.tol > 0

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch 1"]:
        return (act.sum(-1, keepdim=True) - self.total).abs() - self.tol

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        total = act.new_full((len(act),), self.total)
        return project_knapsack(act, torch.ones_like(act), -1.0, 1.0, total, equality=True)

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        return torch.full_like(act, self.total / self.action_dim)

    def _plane(self, obs: Tensor | None, batch: int, like: Tensor) -> Tensor:
        return like.new_ones(batch, 1, self.action_dim)

    def _pieces(self, obs: Tensor | None, batch: int, like: Tensor) -> ConvexPieces:
        ones = like.new_ones(batch, 1, self.action_dim)
        if self.tol > _THINNEST_BAND:
            bound = like.new_tensor([self.total + self.tol, self.tol - self.total]).expand(batch, 2)
            return ConvexPieces(inequality=torch.cat([ones, -ones], 1), inequality_bound=bound)
        return ConvexPieces(equality=ones, equality_bound=like.new_full((batch, 1), self.total))

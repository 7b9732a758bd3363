"""Box, ball and ellipsoid."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.constraints._dual_search import clip, project_ball, project_diagonal_ellipsoid
from octavo_aram.constraints._interior_point import project_pieces
from octavo_aram.constraints._pieces import with_box
from octavo_aram.constraints._polytope import project_polytope
from octavo_aram.constraints._user import checked_count, checked_dim, checked_number, from_user, numbers, vector
from octavo_aram.constraints.base import Constraint, ConvexPieces, note_qp

__all__ = ["Box", "Ellipsoid", "L2Ball"]


class Box(Constraint):
    """Bounds on each component, within the normalised box.

    Args:
        low: Lower bounds [d] in [-1, 1].
        high: Upper bounds [d] in [-1, 1].

    Raises:
        InvalidValueError: If bounds differ in length, cross, leave [-1, 1] or are not finite.

    Source:
        Beyond the paper: the plainest set, and a part of intersections.
    """

    exact_projection = True

    def __init__(self, low: Any, high: Any) -> None:
        self.low, self.high = vector(low, "low"), vector(high, "high")
        if self.low.shape != self.high.shape:
            raise InvalidValueError(f"low has {len(self.low)} entries and high {len(self.high)}; give as many of each")
        self.action_dim = checked_dim(len(self.low))
        if (self.low > self.high).any():
            raise InvalidValueError(
                f"the feasible set is empty: low {self.low.tolist()} exceeds high {self.high.tolist()} somewhere"
            )
        if self.low.min() < -1 or self.high.max() > 1:
            raise InvalidValueError(
                "bounds leave the normalised action box [-1, 1]^d; give them in normalised units, "
                "(value - middle of the range) / half the range"
            )
        self.has_volume = bool((self.low < self.high).all())

    def _bounds(self, like: Tensor) -> tuple[Tensor, Tensor]:
        low, high = (torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in (self.low, self.high))
        return low, high

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        low, high = self._bounds(act)
        return torch.maximum(low - act, act - high)

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        low, high = self._bounds(act)
        return torch.minimum(torch.maximum(act, low), high)

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        low, high = self._bounds(act)
        return ((low + high) / 2).expand_as(act)

    def _pieces(self, obs: Tensor | None, batch: int, like: Tensor) -> ConvexPieces:
        low, high = self._bounds(like)
        eye = torch.eye(self.action_dim, dtype=like.dtype, device=like.device)
        sides = torch.cat([eye, -eye]).expand(batch, -1, -1)
        return ConvexPieces(inequality=sides, inequality_bound=torch.cat([high, -low]).expand(batch, -1))


class L2Ball(Constraint):
    """A Euclidean ball: ``sum (a_i - center_i)^2 <= radius2``.

    Args:
        radius2: Squared radius >= 0.
        center: Centre [d] within [-1, 1]^d; the origin by default.
        action_dim: Number of components, needed without ``center``.

    Raises:
        InvalidValueError: If the radius is negative or not finite, the centre leaves the box, or the dimension is
            missing.

    Source:
        Re+L2, An+L2 and Swimmer's constraints of the benchmark.
    """

    exact_projection = True

    def __init__(
        self,
        radius2: Any,
        center: Any = None,
        *,
        action_dim: Any = None,
    ) -> None:
        size = checked_number(radius2, "radius2", least=0.0, hint="leaves the ball empty")
        if center is None and action_dim is None:
            raise InvalidValueError("give action_dim or a center, so that the number of action components is known")
        self.radius2 = size
        self.center = np.zeros(checked_dim(action_dim)) if center is None else vector(center, "center")
        self.action_dim = checked_dim(len(self.center))
        if action_dim is not None and action_dim != self.action_dim:
            raise InvalidValueError(f"center has {self.action_dim} entries but action_dim={action_dim}")
        _check_center(self.center)
        self.has_volume = self.radius2 > 0

    def _center(self, like: Tensor) -> Tensor:
        return torch.as_tensor(self.center, dtype=like.dtype, device=like.device)

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch 1"]:
        return (act - self._center(act)).square().sum(-1, keepdim=True) - self.radius2

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        return project_ball(act, self._center(act), self.radius2)

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        return self._center(act).expand_as(act)

    def _pieces(self, obs: Tensor | None, batch: int, like: Tensor) -> ConvexPieces:
        eye = torch.eye(self.action_dim, dtype=like.dtype, device=like.device)
        if self.radius2 == 0:
            return ConvexPieces(equality=eye.expand(batch, -1, -1), equality_bound=self._center(like).expand(batch, -1))
        return ConvexPieces(quadratics=((eye, self._center(like), like.new_tensor(self.radius2)),))


class Ellipsoid(Constraint):
    """An ellipsoid or a degenerate one: ``(a - center)^T Q (a - center) <= bound`` with Q positive semidefinite.

    Args:
        matrix: Q as [d, d], its diagonal as [d], or a function that maps float64 NumPy observations [batch, obs] to
            [batch, d, d] or [batch, d]; projections and violations have no gradient with respect to what it reads.
        bound: Right-hand side >= 0.
        center: Centre [d] within the box; the origin by default.
        action_dim: Number of components, needed if ``matrix`` is a function.
        min_obs_dim: Least number of observation entries that the function reads.

    Raises:
        InvalidValueError: If Q is not symmetric, the bound is negative, or shapes do not fit.
        InvalidTypeError: If Q has a negative eigenvalue.

    Source:
        Beyond the paper: R+T and O+S of the omron-sinicx benchmark.
    """

    def __init__(
        self,
        matrix: Any,
        bound: Any,
        center: Any = None,
        *,
        action_dim: Any = None,
        min_obs_dim: Any = 0,
    ) -> None:
        self.bound = checked_number(bound, "bound", least=0.0, hint="leaves the ellipsoid empty")
        self.matrix = matrix
        self.needs_obs = callable(matrix)
        self.min_obs_dim = checked_count(min_obs_dim, "min_obs_dim") if callable(matrix) else 0
        if callable(matrix):
            if action_dim is None:
                raise InvalidValueError("give action_dim: the matrix is a function, so its size is not known yet")
            self.action_dim = checked_dim(action_dim)
        else:
            fixed = numbers(matrix, "matrix")
            self.action_dim = checked_dim(fixed.shape[-1] if fixed.ndim else 0)
            if action_dim is not None and action_dim != self.action_dim:
                raise InvalidValueError(f"the matrix is for {self.action_dim} components but action_dim={action_dim}")
            self.matrix = _checked_quadratic(fixed[None], self.action_dim)[0]
            self.exact_projection = self.matrix.ndim == 1
        self.center = np.zeros(self.action_dim) if center is None else vector(center, "center")
        if self.center.shape != (self.action_dim,):
            raise InvalidValueError(f"center has {len(self.center)} entries; give {self.action_dim}")
        _check_center(self.center)
        self.has_volume = self.bound > 0 or callable(matrix) or not np.any(self.matrix)

    def _quadratic(self, obs: Tensor | None, like: Tensor) -> Tensor:
        """Q for every row: [batch, d, d] or [batch, d]."""
        if callable(self.matrix):
            values = from_user(self.matrix, obs, like)
            checked = _checked_quadratic(values.detach().cpu().numpy(), self.action_dim)
            return torch.as_tensor(checked, dtype=like.dtype, device=like.device)
        fixed = torch.as_tensor(self.matrix, dtype=like.dtype, device=like.device)
        return fixed.expand(len(like), *fixed.shape)

    def _center(self, like: Tensor) -> Tensor:
        return torch.as_tensor(self.center, dtype=like.dtype, device=like.device)

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch 1"]:
        quadratic, offset = self._quadratic(obs, act), act - self._center(act)
        image = quadratic * offset if quadratic.ndim == 2 else torch.einsum("bij,bj->bi", quadratic, offset)
        return (image * offset).sum(-1, keepdim=True) - self.bound

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        quadratic, center = self._quadratic(obs, act), self._center(act)
        if quadratic.ndim == 2:
            return project_diagonal_ellipsoid(act, quadratic, center, self.bound)
        clipped = clip(act, -1.0, 1.0)
        with torch.no_grad():
            # What the interior-point method returns counts as inside: it would move a point of the border by 1e-7.
            rounding = max(min(1e-10 * self.bound, 1e-9), 1e-14)
            rows = (self._excess(obs, clipped)[:, 0] > rounding).nonzero()[:, 0]
        if len(rows) == 0:
            return clipped
        if self.bound == 0:
            # Only the null space of Q around the centre is left, cut by the box: a polytope.
            normals = _range_of(quadratic[rows])
            level = normals @ center
            sides, limits = torch.cat([normals, -normals], 1), torch.cat([level, -level], 1)
            flat, solved = project_polytope(act[rows], sides, limits)
            note_qp(solved)
            return clipped.index_put((rows,), flat)
        # In the basis of Q's axes the set is diagonal; where the box does not matter that is the answer.
        with torch.no_grad():
            axes, turn = torch.linalg.eigh(quadratic[rows])
        turned = torch.einsum("bji,bj->bi", turn, act[rows] - center)
        flat = project_diagonal_ellipsoid(turned, axes.clamp(min=0), torch.zeros_like(center), self.bound, boxed=False)
        unboxed = torch.einsum("bij,bj->bi", turn, flat) + center
        outside = (unboxed.detach().abs() > 1).any(-1)
        clipped = clipped.index_put((rows[~outside],), unboxed[~outside])
        rows = rows[outside]
        if len(rows) == 0:
            return clipped
        note_qp(len(rows))
        pieces = ConvexPieces(quadratics=((quadratic[rows], center, act.new_tensor(self.bound)),))
        boxed = with_box(pieces, len(rows), self.action_dim, act)
        return clipped.index_put((rows,), project_pieces(act[rows], boxed))

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        return self._center(act).expand_as(act)

    def _pieces(self, obs: Tensor | None, batch: int, like: Tensor) -> ConvexPieces:
        quadratic = self._quadratic(obs, like.new_zeros(batch, self.action_dim))
        full = torch.diag_embed(quadratic) if quadratic.ndim == 2 else quadratic
        if self.bound == 0:
            normals = _range_of(full)
            return ConvexPieces(equality=normals, equality_bound=normals @ self._center(like))
        return ConvexPieces(quadratics=((full, self._center(like), like.new_tensor(self.bound)),))


def _range_of(quadratic: Tensor) -> Tensor:
    """Normals [batch, d, d] of the null spaces of positive semidefinite matrices: unit vectors and zeros."""
    with torch.no_grad():
        axes, turn = torch.linalg.eigh(quadratic)
        rounding = quadratic.shape[-1] * torch.finfo(quadratic.dtype).eps
        return turn.mT * (axes > rounding * axes.amax(-1, keepdim=True).clamp(min=0))[..., None]


def _check_center(center: np.ndarray) -> None:
    if np.abs(center).max() > 1:
        raise InvalidValueError(f"center {center.tolist()} lies outside the normalised action box [-1, 1]^d")


def _checked_quadratic(values: np.ndarray, dim: int) -> np.ndarray:
    if values.shape[1:] not in {(dim,), (dim, dim)}:
        raise InvalidValueError(
            f"the matrix has shape {values.shape[1:]}; give [{dim}, {dim}], or [{dim}] for its diagonal"
        )
    if not np.isfinite(values).all():
        raise InvalidValueError("the matrix holds NaN or infinite entries")
    if values.ndim == 2:
        smallest = values.min(initial=0.0)
    else:
        if not np.allclose(values, values.swapaxes(1, 2), rtol=1e-10, atol=1e-12):
            raise InvalidValueError("the matrix is not symmetric; give (Q + Q^T) / 2")
        smallest = np.linalg.eigvalsh(values).min(initial=0.0)
    if smallest < -1e-10 * max(1.0, np.abs(values).max(initial=0.0)):
        raise InvalidTypeError(f"the matrix has the negative eigenvalue {smallest:.3g}: the set would not be convex")
    return values

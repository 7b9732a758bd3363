"""What every constraint on actions answers: membership, violation, projection, an interior point, its volume.

Public methods take NumPy arrays or torch tensors and return the same kind, dtype and device; lists count as arrays.
Below them one implementation works on batches of torch tensors in float64: a float32 sum of seventeen products of size
30 is off by more than the tolerance of the checks, 1e-6.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.constraints._batch import Batch
from octavo_aram.constraints._counter import QPCounter, count_qp, note_qp
from octavo_aram.constraints._empty import renumbered
from octavo_aram.constraints._settle import rounded_by_trial, settled
from octavo_aram.constraints._user import checked_dim, checked_tolerance
from octavo_aram.user_code import user_errors

__all__ = ["Array", "Constraint", "ConvexPieces", "QPCounter", "VolumeEstimate", "count_qp", "note_qp"]

Array = np.ndarray | Tensor
"""What public methods take and return."""

# Beyond this magnitude offsets of size 1 drown in the spacing of floats, and squares may overflow.
_LARGEST_ACTION = 1e14
_REDUCED_ACTION = 1e8
# Beyond this one a projection leaves errors of rounding that a second one removes.
_FAR_ACTION = 1e6


@dataclass(frozen=True)
class VolumeEstimate:
    """Size of a feasible set.

    Args:
        value: Share of the normalised box that is feasible, in [0, 1].
        stderr: Standard error of ``value``; 0 where it is exact.
        log_volume: Natural logarithm of the volume, ``log(value * 2**d)``; ``-inf`` for a set without volume.
    """

    value: float
    stderr: float
    log_volume: float


@dataclass(frozen=True)
class ConvexPieces:
    """A convex set as linear and quadratic pieces, for a batch of states, over actions and lifted variables.

    The set is ``{a : exists t with G (a, t) <= h, E (a, t) = f, (a - center)^T Q (a - center) <= bound}``.

    Args:
        lifted: Number of lifted variables t.
        inequality: G, one row per linear inequality.
        inequality_bound: h.
        equality: E.
        equality_bound: f.
        quadratics: Tuples (Q, center, bound) that bear on the action alone.
    """

    lifted: int = 0
    inequality: Float[Tensor, "batch rows columns"] | None = None
    inequality_bound: Float[Tensor, "batch rows"] | None = None
    equality: Float[Tensor, "batch equations columns"] | None = None
    equality_bound: Float[Tensor, "batch equations"] | None = None
    quadratics: Sequence[tuple[Tensor, Tensor, Tensor]] = field(default=())


class Constraint(ABC):
    """A feasible set C(s) within the normalised box [-1, 1]^d; the box always belongs to the set.

    A subclass gives ``action_dim`` and ``_excess(self, obs, act)``, which returns [batch, functions], positive where
    violated; and where it can ``_project(self, obs, act)`` and ``_interior(self, obs, act)``, which return feasible
    actions [batch, d]. ``obs`` [batch, obs] (``None`` unless ``needs_obs``) and ``act`` [batch, d] are float64 tensors,
    and so are the results.

    Attributes:
        action_dim: Number d of action components.
        needs_obs: Whether the set depends on the observation.
        exact_projection: Whether projection is a closed form, a sort or a one-dimensional search: no QP.
        convex: Whether C(s) is convex.
        has_volume: Whether C(s) can have volume; ``False`` for equations and integer sets.
        min_obs_dim: Least number of observation entries.

    Source:
        Section 3 of the paper (the feasible set C(s)).
    """

    action_dim: int
    needs_obs: bool = False
    exact_projection: bool = False
    convex: bool = True
    has_volume: bool = True
    min_obs_dim: int = 0

    @abstractmethod
    def _excess(
        self, obs: Float[Tensor, "batch obs"] | None, act: Float[Tensor, "batch d"]
    ) -> Float[Tensor, "batch functions"]:
        """Constraint functions, positive where violated; the box is added by the caller."""

    def _project(
        self, obs: Float[Tensor, "batch obs"] | None, act: Float[Tensor, "batch d"]
    ) -> Float[Tensor, "batch d"]:
        raise InvalidTypeError(
            f"{self!r} has no projection; define _project(self, obs, act) in {type(self).__name__}, raise max_tries, "
            "or choose another fallback"
        )

    def _interior(self, obs: Float[Tensor, "batch obs"] | None, act: Float[Tensor, "batch d"]) -> Tensor:
        """Feasible points, as far from the border as is cheap; ``act`` holds zeros of the right shape."""
        return self._nearest(obs, act)

    def _pieces(self, obs: Float[Tensor, "batch obs"] | None, batch: int, like: Tensor) -> ConvexPieces | None:
        """The set as convex pieces without the box, or ``None`` if it is not of that form."""
        return None

    def _plane(self, obs: Tensor | None, batch: int, like: Tensor) -> Tensor | None:
        """Normals [batch, equations, d] of a plane that rays and walks must not leave, or ``None``."""
        pieces = self._pieces(obs, batch, like)
        return None if pieces is None or pieces.equality is None else pieces.equality[..., : self.action_dim]

    def _anchor(self, obs: Tensor | None, act: Tensor) -> Tensor | None:
        """Points towards which results may be pulled, unchecked; ``None`` where no interior point is known."""
        return None if type(self)._interior is Constraint._interior else self._run("_interior", obs, act)

    def _is_own(self) -> bool:
        return type(self).__module__.partition(".")[0] == __name__.partition(".")[0]

    def _outside_message(self, method: str, violation: float) -> str:
        """What a result outside the set means."""
        if self._is_own():
            return (
                f"rounding in float64 leaves the nearest point outside {self!r} by {violation:.3g}: its numbers are "
                "too large or too many powers of ten apart; rescale the rows, weights and limits towards 1"
            )
        return (
            f"{type(self).__name__}.{method} returned a point outside its set, which its own _excess calls infeasible "
            f"by {violation:.3g}; return feasible actions within [-1, 1]"
        )

    def _functions(self, obs: Tensor | None, act: Tensor) -> Tensor:
        """Result of ``_excess``, checked: a wrong shape would be broadcast to a wrong answer."""
        values = self._run("_excess", obs, act)
        if not self._is_own() and bool(torch.isnan(values.detach()).any()):
            raise InvalidValueError(
                f"{type(self).__name__}._excess returned NaN for finite observations and actions; return finite numbers"
            )
        if values.ndim != 2 or len(values) != len(act) or values.shape[1] == 0:
            raise InvalidValueError(
                f"{type(self).__name__}._excess returned shape {tuple(values.shape)} for {len(act)} actions; "
                f"return [batch, functions], here [{len(act)}, 1] or more columns"
            )
        return values

    def _nearest(self, obs: Tensor | None, act: Tensor) -> Tensor:
        """Result of ``_project``, checked."""
        far = (act.detach().abs() > _FAR_ACTION).any(-1)
        if far.any():
            # Rounding grows with the action, so that the first projection may lie outside. A second one leaves an error
            # no larger than that of the first: projections onto convex sets bring no points further apart.
            rows = far.nonzero()[:, 0]
            seen = None if obs is None else obs[rows]
            with renumbered(rows):
                first = (self._run if self._is_own() else self._points)("_project", seen, act[rows])
            act = act.index_put((rows,), first)
        return self._points("_project", obs, act)

    def _inner(self, obs: Tensor | None, act: Tensor) -> Tensor:
        """Result of ``_interior``, checked."""
        return self._points("_interior", obs, act)

    def _points(self, method: str, obs: Tensor | None, act: Tensor) -> Tensor:
        points = self._run(method, obs, act)
        if points.shape != act.shape:
            raise InvalidValueError(
                f"{type(self).__name__}.{method} returned shape {tuple(points.shape)} for actions "
                f"{tuple(act.shape)}; return one action for each"
            )
        return settled(self, method, obs, points, act)

    def _run(self, method: str, obs: Tensor | None, act: Tensor) -> Tensor:
        if self._is_own():
            values = getattr(self, method)(obs, act)
        else:
            # Code that works in place must not change the caller's arrays.
            with user_errors(f"{type(self).__name__}.{method}"):
                values = getattr(self, method)(None if obs is None else obs.clone(), act.clone())
        if not isinstance(values, Tensor) or values.dtype == torch.bool or values.is_complex():
            kind = values.dtype if isinstance(values, Tensor | np.ndarray) else type(values).__name__
            raise InvalidTypeError(
                f"{type(self).__name__}.{method} returned {kind}; return a torch tensor of real numbers, computed from "
                "the tensors that it is given"
            )
        return values.to(act.dtype)

    def _violation(
        self, obs: Float[Tensor, "batch obs"] | None, act: Float[Tensor, "batch d"]
    ) -> Float[Tensor, " batch"]:
        # Products of huge actions may overflow to inf - inf.
        excess = self._functions(obs, act).nan_to_num(nan=torch.inf, posinf=torch.inf)
        return excess.clamp(min=0).sum(-1) + (act.abs() - 1).clamp(min=0).sum(-1)

    def _contains(
        self, obs: Float[Tensor, "batch obs"] | None, act: Float[Tensor, "batch d"], tol: float
    ) -> Bool[Tensor, " batch"]:
        inside = (act.abs() <= 1 + tol).all(-1)
        return inside & (self._functions(obs, act) <= tol).all(-1)

    def contains(self, obs: Any, act: Any, tol: Any = 1e-6) -> Any:
        """Tell which actions are feasible.

        Args:
            obs: Raw observations [o] or [..., o]; ``None`` if the set does not depend on them.
            act: Actions [d] or [..., d] in normalised units.
            tol: Slack allowed for each constraint function and for the box, finite and >= 0.

        Returns:
            Booleans of the leading shape; a plain ``bool`` for one action.

        Raises:
            InvalidValueError: If shapes do not fit, an entry is NaN or infinite, or ``tol`` is out of range.

        Source:
            Section 4.1 (the membership oracle of acceptance-rejection); tolerance 1e-6 as in the official checks.
        """
        slack = checked_tolerance(tol)
        batch = Batch.of(self, obs, act)
        with torch.no_grad():
            inside = self._contains(batch.obs, batch.act, slack)
        return bool(inside[0]) if not batch.leading else batch.shaped(inside)

    def violation(self, obs: Any, act: Any) -> Any:
        """Measure by how much actions violate the constraint: the sum of the positive parts of its functions.

        Args:
            obs: Raw observations [o] or [..., o]; ``None`` if the set does not depend on them.
            act: Actions [d] or [..., d] in normalised units. Tensors keep their gradient, also that of ``obs`` where
                the set reads it in torch: functions of the user's are called in NumPy and give it none.

        Returns:
            Values >= 0 of the leading shape, 0 exactly inside; scalar arrays for one action.

        Raises:
            InvalidValueError: If shapes do not fit or an entry is NaN or infinite.

        Source:
            The penalty of the "+" baselines (DPre+, SPre+).
        """
        batch = Batch.of(self, obs, act)
        return batch.shaped(batch.cast(self._violation(batch.obs, batch.act)))

    def project(self, obs: Any, act: Any) -> Any:
        """Find the nearest feasible actions in the Euclidean norm (for ``SumEquality`` those of exactly the sum).

        Tensors keep their gradient where the projection has one: that of ``act``, and that of ``obs`` where the set
        reads it in torch (``w_idx``); functions of the user's are called in NumPy and give it none. A result in less
        than float64 may be pulled inwards by a few units in the last place so that rounding does not make it
        infeasible.

        Args:
            obs: Raw observations [o] or [..., o]; ``None`` if the set does not depend on them.
            act: Actions [d] or [..., d], of any magnitude. Beyond 1e6 the result is feasible, and the nearest to an
                action that differs from the given one by a part in 1e12 or less; by one in 1e6 beyond 1e14 and where
                the set needs an interior-point method.

        Returns:
            Actions of the same shape, kind, dtype and device.

        Raises:
            InvalidValueError: If the set is empty, shapes do not fit or an entry is NaN or infinite.
            InvalidTypeError: If the constraint has no projection.

        Source:
            Section 4.1 (the fallback after T tries).
        """
        batch = Batch.of(self, obs, act)
        if batch.act.shape[0] == 0:
            return batch.shaped(batch.cast(batch.act))
        goal = batch.act
        reach = float(goal.detach().abs().max())
        if reach > _LARGEST_ACTION:
            largest = goal.detach().abs().amax(-1, keepdim=True)
            goal = goal * torch.where(largest > _LARGEST_ACTION, _REDUCED_ACTION / largest, 1.0)
        # Most actions are near: what is known of the batch saves a look at each row.
        near = reach <= _FAR_ACTION
        exact = self._points("_project", batch.obs, goal) if near else self._nearest(batch.obs, goal)
        return batch.shaped(self._rounded(batch, exact, goal))

    def interior(self, obs: Any = None) -> Any:
        """Give a feasible point for each state, away from the border where that is cheap.

        Args:
            obs: Raw observations [o] or [..., o]; ``None`` if the set does not depend on them.

        Returns:
            Actions [d] or [..., d], of the kind of ``obs``; a NumPy vector without observations.

        Raises:
            InvalidValueError: If the set is empty or the observation does not fit.

        Source:
            Beyond the paper: the origin of alpha-projection and a fallback that needs no projection.
        """
        if obs is not None and not isinstance(obs, Tensor | np.ndarray):
            obs = Batch.array(obs, "observation")
        leading = () if obs is None else tuple(obs.shape[:-1])
        self._checked_action_dim()
        zeros: Array
        if isinstance(obs, Tensor):
            dtype = obs.dtype if obs.is_floating_point() else torch.float64
            zeros = torch.zeros(*leading, self.action_dim, dtype=dtype, device=obs.device)
        else:
            floating = obs is not None and np.issubdtype(obs.dtype, np.floating)
            zeros = np.zeros((*leading, self.action_dim), obs.dtype if obs is not None and floating else np.float64)
        batch = Batch.of(self, obs, zeros)
        with torch.no_grad():
            return batch.shaped(batch.cast(self._inner(batch.obs, batch.act)))

    def volume_fraction(self, obs: Any = None, n: int | Any = 100_000, seed: int | Any = 0) -> VolumeEstimate:
        """Estimate the feasible share of the normalised box.

        Args:
            obs: One raw observation [o], or several [B, o] over which the share is averaged; ``None`` if the set does
                not depend on them.
            n: Uniform draws. Sets too thin for them are measured by nested level sets with as many more.
            seed: Seed of the draws.

        Returns:
            The share, its standard error and the log volume.

        Raises:
            InvalidValueError: If ``n`` is below 1 or the observation does not fit.
            InvalidTypeError: If ``n`` or ``seed`` is not whole.

        Source:
            Beyond the paper: ties the target entropy to the log volume, without which thin sets collapse.
        """
        from octavo_aram.constraints.volume import estimate_volume

        return estimate_volume(self, obs, n=n, seed=seed)

    def _checked_action_dim(self) -> int:
        """The number of action components; subclasses may forget it."""
        dim = getattr(self, "action_dim", None)
        if isinstance(dim, bool) or not isinstance(dim, int | np.integer) or dim < 1:
            raise InvalidTypeError(
                f"{type(self).__name__}.action_dim is {dim!r}; set it to the number of action components, an integer "
                ">= 1, in the class or before the first call"
            )
        return checked_dim(dim)

    def fingerprint(self) -> str:
        """Tell this constraint from others: a hash of its class, its parameters and the user's functions in them.

        Returns:
            64 hexadecimal digits; equal for constraints that are the same.

        Source:
            Beyond the paper: a run goes on only under the constraint that it was started with.
        """
        from octavo_aram.constraints._identity import fingerprint

        return fingerprint(self)

    def __repr__(self) -> str:
        from octavo_aram.constraints._identity import describe

        return describe(self)

    def _rounded(self, batch: Batch, exact: Tensor, goal: Tensor | None = None) -> Tensor:
        """Cast a projection to the caller's dtype without leaving the set."""
        result = batch.cast(exact)
        if result.dtype == exact.dtype:
            return result
        if not self.convex:
            return rounded_by_trial(self, batch, exact, goal)
        with torch.no_grad():
            slack = self._violation(batch.obs, exact)
            out = self._violation(batch.obs, result.to(exact.dtype)) > slack + 1e-7
            if not out.any() or not self.has_volume:
                return result
            rows = out.nonzero()[:, 0]
            obs = None if batch.obs is None else batch.obs[rows]
            point = exact[rows]
            inner = self._inner(obs, torch.zeros_like(point))
            pulled, todo = point.clone(), torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            for power in range(5):
                share = min(torch.finfo(result.dtype).eps * 4**power, 1.0)
                pulled[todo] = torch.lerp(point[todo], inner[todo], share)
                todo = self._violation(obs, pulled.to(result.dtype).to(exact.dtype)) > slack[rows] + 1e-7
                if not todo.any():
                    break
            shift = torch.zeros_like(exact)
            shift[rows] = pulled - point
        return batch.cast(exact + shift)

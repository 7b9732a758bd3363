"""What every constraint on actions answers: membership, violation, projection, an interior point, its volume.

Public methods take NumPy arrays or torch tensors and return the same kind, dtype and device. Below them one
implementation works on batches of torch tensors in float64: a float32 sum of seventeen products of size 30 is off by
more than the tolerance of the checks, 1e-6.
"""

from __future__ import annotations

import contextlib
import contextvars
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

__all__ = ["Array", "Constraint", "ConvexPieces", "QPCounter", "VolumeEstimate", "count_qp"]

Array = np.ndarray | Tensor
"""What public methods take and return."""

ArrayT = TypeVar("ArrayT", np.ndarray, Tensor)

# Beyond this magnitude offsets of size 1 drown in the spacing of floats, and squares may overflow.
_LARGEST_ACTION = 1e14
_REDUCED_ACTION = 1e8
# Beyond this one a projection leaves errors of rounding that a second one removes.
_FAR_ACTION = 1e6


@dataclass
class QPCounter:
    """Number of rows that needed an iterative solver (polytopes and intersections) while a :func:`count_qp` was open.

    Args:
        solves: Rows solved so far.
    """

    solves: int = 0


_counters: contextvars.ContextVar[tuple[QPCounter, ...]] = contextvars.ContextVar("octavo_aram_qp", default=())


@contextlib.contextmanager
def count_qp() -> Generator[QPCounter]:
    """Count the quadratic programs that projections solve within the block.

    Closed forms and one-dimensional dual searches are not counted.

    Yields:
        The counter, still readable after the block.

    Source:
        Section 5 of the paper counts QP solves as the cost of projection-based methods.
    """
    counter = QPCounter()
    token = _counters.set((*_counters.get(), counter))
    try:
        yield counter
    finally:
        _counters.reset(token)


def note_qp(solves: int) -> None:
    """Tell every open counter that so many rows were solved iteratively."""
    for counter in _counters.get():
        counter.solves += solves


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

    A subclass gives ``action_dim`` and ``_excess``, and where it can ``_project`` and ``_interior``: functions of a
    batch of raw observations and actions as float64 tensors (``obs`` is ``None`` unless ``needs_obs``).

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
            f"{self!r} has no projection; give one (project=...), raise max_tries, or choose another fallback"
        )

    def _interior(self, obs: Float[Tensor, "batch obs"] | None, act: Float[Tensor, "batch d"]) -> Tensor:
        """Feasible points, as far from the border as is cheap; ``act`` holds zeros of the right shape."""
        return self._project(obs, act)

    def _pieces(self, obs: Float[Tensor, "batch obs"] | None, batch: int, like: Tensor) -> ConvexPieces | None:
        """The set as convex pieces without the box, or ``None`` if it is not of that form."""
        return None

    def _violation(
        self, obs: Float[Tensor, "batch obs"] | None, act: Float[Tensor, "batch d"]
    ) -> Float[Tensor, " batch"]:
        # Products of huge actions may overflow to inf - inf.
        excess = self._excess(obs, act).nan_to_num(nan=torch.inf, posinf=torch.inf)
        return excess.clamp(min=0).sum(-1) + (act.abs() - 1).clamp(min=0).sum(-1)

    def _contains(
        self, obs: Float[Tensor, "batch obs"] | None, act: Float[Tensor, "batch d"], tol: float
    ) -> Bool[Tensor, " batch"]:
        inside = (act.abs() <= 1 + tol).all(-1)
        return inside & (self._excess(obs, act) <= tol).all(-1)

    def contains(self, obs: Array | None, act: Array, tol: float | int = 1e-6) -> Any:
        """Tell which actions are feasible.

        Args:
            obs: Raw observations [o] or [..., o]; ``None`` if the set does not depend on them.
            act: Actions [d] or [..., d] in normalised units.
            tol: Slack allowed for each constraint function and for the box.

        Returns:
            Booleans of the leading shape; a plain ``bool`` for one action.

        Raises:
            InvalidValueError: If shapes do not fit or an entry is NaN or infinite.

        Source:
            Section 4.1 (the membership oracle of acceptance-rejection); tolerance 1e-6 as in the official checks.
        """
        batch = Batch.of(self, obs, act)
        with torch.no_grad():
            inside = self._contains(batch.obs, batch.act, float(tol))
        return bool(inside[0]) if not batch.leading else batch.shaped(inside)

    def violation(self, obs: Array | None, act: Array) -> Any:
        """Measure by how much actions violate the constraint: the sum of the positive parts of its functions.

        Args:
            obs: Raw observations [o] or [..., o]; ``None`` if the set does not depend on them.
            act: Actions [d] or [..., d] in normalised units. Tensors keep their gradient.

        Returns:
            Values >= 0 of the leading shape, 0 exactly inside; scalar arrays for one action.

        Raises:
            InvalidValueError: If shapes do not fit or an entry is NaN or infinite.

        Source:
            The penalty of the "+" baselines (DPre+, SPre+).
        """
        batch = Batch.of(self, obs, act)
        return batch.shaped(batch.cast(self._violation(batch.obs, batch.act)))

    def project(self, obs: Array | None, act: ArrayT) -> ArrayT:
        """Find the nearest feasible actions in the Euclidean norm.

        Tensors keep their gradient where the projection has one. A result in less than float64 may be pulled inwards by
        a few units in the last place so that rounding does not make it infeasible.

        Args:
            obs: Raw observations [o] or [..., o]; ``None`` if the set does not depend on them.
            act: Actions [d] or [..., d], of any magnitude.

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
            return cast("ArrayT", batch.shaped(batch.cast(batch.act)))
        goal = batch.act
        reach = float(goal.detach().abs().max())
        if reach > _LARGEST_ACTION:
            largest = goal.detach().abs().amax(-1, keepdim=True)
            goal = goal * torch.where(largest > _LARGEST_ACTION, _REDUCED_ACTION / largest, 1.0)
        exact = self._project(batch.obs, goal)
        if reach > _FAR_ACTION:
            exact = self._project(batch.obs, exact)
        return cast("ArrayT", batch.shaped(self._rounded(batch, exact)))

    def interior(self, obs: Array | None = None) -> Any:
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
        leading = () if obs is None else tuple(obs.shape[:-1])
        zeros: Array
        if isinstance(obs, Tensor):
            dtype = obs.dtype if obs.is_floating_point() else torch.float64
            zeros = torch.zeros(*leading, self.action_dim, dtype=dtype, device=obs.device)
        else:
            floating = obs is not None and np.issubdtype(obs.dtype, np.floating)
            zeros = np.zeros((*leading, self.action_dim), obs.dtype if obs is not None and floating else np.float64)
        batch = Batch.of(self, obs, zeros)
        with torch.no_grad():
            return batch.shaped(batch.cast(self._interior(batch.obs, batch.act)))

    def volume_fraction(self, obs: Array | None = None, n: int = 100_000, seed: int = 0) -> VolumeEstimate:
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

        Source:
            Beyond the paper: ties the target entropy to the log volume, without which thin sets collapse.
        """
        from octavo_aram.constraints.volume import estimate_volume

        return estimate_volume(self, obs, n=n, seed=seed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(action_dim={getattr(self, 'action_dim', '?')})"

    def _rounded(self, batch: Batch, exact: Tensor) -> Tensor:
        """Cast a projection to the caller's dtype without leaving the set."""
        result = batch.cast(exact)
        if result.dtype == exact.dtype:
            return result
        with torch.no_grad():
            slack = self._violation(batch.obs, exact)
            out = self._violation(batch.obs, result.to(exact.dtype)) > slack + 1e-7
            if not out.any() or not self.convex or not self.has_volume:
                return result
            rows = out.nonzero()[:, 0]
            obs = None if batch.obs is None else batch.obs[rows]
            point = exact[rows]
            inner = self._interior(obs, torch.zeros_like(point))
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


@dataclass(frozen=True)
class Batch:
    """Observations and actions as float64 tensors of one leading axis, and the way back to the caller's form."""

    obs: Tensor | None
    act: Tensor
    leading: tuple[int, ...]
    dtype: torch.dtype
    numpy: bool

    @classmethod
    def of(cls, constraint: Constraint, obs: Array | None, act: Array) -> Batch:
        """Check and convert one call's arguments."""
        action, action_finite = _tensor(act, "action")
        dim = constraint.action_dim
        if action.ndim == 0 or action.shape[-1] != dim:
            raise InvalidValueError(
                f"action of shape {tuple(action.shape)} does not fit {constraint!r}; "
                f"give [{dim}] or [batch, {dim}], in normalised units"
            )
        dtype = action.dtype if action.is_floating_point() else torch.float64
        action = action.to(_working_dtype(action.device))
        if not action_finite:
            raise InvalidValueError("the action holds NaN or infinite entries; a policy that diverged does this")
        observation = None
        leading = tuple(action.shape[:-1])
        if constraint.needs_obs:
            if obs is None:
                raise InvalidValueError(f"{constraint!r} depends on the state; give the raw observation")
            observation, finite = _tensor(obs, "observation")
            observation = observation.to(device=action.device, dtype=action.dtype)
            least = constraint.min_obs_dim
            if observation.ndim == 0 or observation.shape[-1] < least:
                raise InvalidValueError(
                    f"observation of shape {tuple(observation.shape)} is too short for {constraint!r}, which reads "
                    f"entry {least - 1}; give raw observations [obs] or [batch, obs]"
                )
            if not finite:
                raise InvalidValueError("the observation holds NaN or infinite entries; give raw, finite observations")
            if action.ndim == 1 and observation.ndim == 1:
                return cls(observation[None], action[None], (), dtype, not isinstance(act, Tensor))
            try:
                leading = torch.broadcast_shapes(leading, observation.shape[:-1])
            except RuntimeError as error:
                raise InvalidValueError(
                    f"{tuple(observation.shape[:-1])} observations and {leading} actions do not match; "
                    "give one observation, or one per action"
                ) from error
            observation = observation.expand(*leading, observation.shape[-1]).reshape(-1, observation.shape[-1])
            action = action.expand(*leading, dim)
        return cls(observation, action.reshape(-1, dim), tuple(leading), dtype, not isinstance(act, Tensor))

    def cast(self, values: Tensor) -> Tensor:
        """Floating-point results in the caller's dtype."""
        return values.to(self.dtype)

    def shaped(self, values: Tensor) -> Any:
        """Results [batch, ...] in the caller's leading shape and kind."""
        values = values.reshape((*self.leading, *values.shape[1:]))
        return values.detach().cpu().numpy() if self.numpy else values


def _working_dtype(device: torch.device) -> torch.dtype:
    # The Metal back end has no float64.
    return torch.float32 if device.type == "mps" else torch.float64


def _tensor(values: Any, what: str) -> tuple[Tensor, bool]:
    """A tensor, and whether all its entries are finite."""
    if isinstance(values, Tensor):
        return values, bool(torch.isfinite(values.detach()).all())
    array = np.array(values)
    if array.dtype.kind not in "fiub":
        raise InvalidTypeError(f"the {what} has dtype {array.dtype}; give real numbers")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return torch.from_numpy(array), bool(np.isfinite(array).all())

"""A constraint known only through a membership test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.constraints._settle import FARTHEST
from octavo_aram.constraints._user import checked_count, checked_dim
from octavo_aram.constraints.base import Constraint
from octavo_aram.user_code import user_errors

__all__ = ["Oracle"]


class Oracle(Constraint):
    """A set given by a function that says yes or no; any shape, no gradient.

    Functions get float64 NumPy arrays: observations [batch, obs] (``None`` unless ``needs_obs``) and actions
    [batch, d].

    Args:
        fn: ``fn(obs, act) -> bool[batch]``.
        project: ``project(obs, act) -> [batch, d]``, feasible points near the actions; without it only tries help.
        action_dim: Number of components.
        needs_obs: Whether ``fn`` reads the observation.
        interior: ``interior(obs) -> [batch, d]`` (or [d] without observations), feasible points.
        min_obs_dim: Least number of observation entries that the functions read.

    Raises:
        InvalidTypeError: If ``fn`` cannot be called.

    Source:
        Section 4.1: acceptance-rejection needs nothing but membership.
    """

    convex = False

    def __init__(
        self,
        fn: Any,
        project: Callable[[Any, np.ndarray], Any] | None = None,
        *,
        action_dim: Any,
        needs_obs: bool = False,
        interior: Callable[[Any], Any] | None = None,
        min_obs_dim: Any = 0,
    ) -> None:
        if not callable(fn):
            raise InvalidTypeError(f"an oracle needs a function fn(obs, act) -> bool[batch], not {type(fn).__name__}")
        self.fn, self.projection, self.interior_fn = fn, project, interior
        self.action_dim = checked_dim(action_dim)
        self.needs_obs = bool(needs_obs)
        self.min_obs_dim = checked_count(min_obs_dim, "min_obs_dim") if needs_obs else 0

    def _call(self, function: Callable[..., Any], obs: Tensor | None, *rest: Tensor) -> np.ndarray:
        arrays = [None if x is None else x.detach().cpu().numpy().copy() for x in (obs, *rest)]
        with user_errors(f"the oracle's function {getattr(function, '__name__', type(function).__name__)!r}"):
            answer = function(*arrays)
            return answer.detach().cpu().numpy() if isinstance(answer, Tensor) else np.asarray(answer)

    def _feasible(self, obs: Tensor | None, act: Tensor) -> Tensor:
        if len(act) == 0:
            return torch.zeros(0, dtype=torch.bool, device=act.device)
        answers = self._call(self.fn, obs, act)
        if answers.shape != (len(act),) or answers.dtype.kind not in "bui":
            raise InvalidValueError(
                f"the oracle answered shape {answers.shape}, dtype {answers.dtype} for {len(act)} actions; "
                "return one bool per action"
            )
        return torch.as_tensor(answers.astype(bool), device=act.device)

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch 1"]:
        # 0 inside and 1 outside: an oracle knows no distance.
        return (~self._feasible(obs, act)).to(act.dtype)[:, None]

    def _checked(self, values: np.ndarray, act: Tensor, what: str) -> Tensor:
        if values.shape not in {tuple(act.shape), (self.action_dim,)} or values.dtype.kind not in "fiu":
            raise InvalidValueError(f"the oracle's {what} returned shape {values.shape}; give {tuple(act.shape)}")
        points = torch.as_tensor(values, dtype=act.dtype, device=act.device).expand_as(act)
        if not torch.isfinite(points).all():
            raise InvalidValueError(f"the oracle's {what} returned NaN or infinite entries; return feasible actions")
        return points

    def _anchor(self, obs: Tensor | None, act: Tensor) -> Tensor | None:
        if self.interior_fn is None:
            return None
        return self._checked(self._call(self.interior_fn, obs), act, "interior")

    def _outside_message(self, method: str, violation: float) -> str:
        return (
            f"the oracle's {method.strip('_')} returned a point that the oracle itself calls infeasible, and so are "
            f"those up to {FARTHEST:g} further inside; leave some slack in fn (such as 1e-6), or shrink the "
            "result by as much"
        )

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        inside = self._contains(obs, act, 0.0)
        if self.projection is None:
            if inside.all():
                return act
            raise InvalidTypeError(
                "this oracle has no projection and an action lies outside; give Oracle(fn, project=...), raise "
                "max_tries, or choose the fallback 'interior' with Oracle(fn, interior=...)"
            )
        points = self._checked(self._call(self.projection, obs, act), act, "project")
        return torch.where(inside[:, None], act, points)

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        if self.interior_fn is not None:
            return self._checked(self._call(self.interior_fn, obs), act, "interior")
        if self.projection is not None:
            return self._project(obs, act)
        raise InvalidTypeError("this oracle knows no interior point; give Oracle(fn, interior=...)")

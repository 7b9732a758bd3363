"""Unions, which are not convex, and intersections."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float
from octavo_core.errors import InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.constraints._dual_search import clip
from octavo_aram.constraints._empty import EmptySetError, renumbered
from octavo_aram.constraints._interior_point import deepest_point, project_pieces
from octavo_aram.constraints._pieces import merge_pieces, with_box
from octavo_aram.constraints.base import Constraint, ConvexPieces, note_qp

__all__ = ["Intersection", "Union"]

_EXACTLY = 1e-12
_MAX_ALTERNATIVES = 4096


def _listed(parts: Any, name: str) -> list[Any]:
    if isinstance(parts, Constraint) or not isinstance(parts, Iterable) or isinstance(parts, str | bytes | Mapping):
        raise InvalidTypeError(f"{name} takes a list of constraints, not {type(parts).__name__}; write [a, b]")
    return list(parts)


def _same_dim(parts: list[Any], name: str) -> int:
    if not parts:
        raise InvalidValueError(f"{name} of no constraints: give one or more")
    for part in parts:
        if not isinstance(part, Constraint):
            raise InvalidTypeError(f"{name} takes constraints, not {type(part).__name__}")
    dims = {part.action_dim for part in parts}
    if len(dims) > 1:
        raise InvalidValueError(f"{name} of constraints on {sorted(dims)} components; they must agree")
    return dims.pop()


class Union(Constraint):
    """A set of alternatives: feasible where any part is. Exact projection: the nearest of the parts' projections.

    Args:
        parts: The alternatives, each within the box, on the same number of components.

    Raises:
        InvalidValueError: If there are none or their dimensions differ.
        InvalidTypeError: If one is not a constraint.

    Source:
        Re+S of the benchmark (two discs).
    """

    convex = False

    def __init__(self, parts: Any) -> None:
        parts = _listed(parts, "a union")
        self.action_dim = _same_dim(parts, "a union")
        self.parts = tuple(parts)
        self.needs_obs = any(part.needs_obs for part in parts)
        self.min_obs_dim = max(part.min_obs_dim for part in parts)
        self.exact_projection = all(part.exact_projection for part in parts)
        self.convex = len(parts) == 1 and parts[0].convex
        self.has_volume = any(part.has_volume for part in parts)

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch 1"]:
        worst = [part._functions(obs, act).amax(-1) for part in self.parts]
        return torch.stack(worst, -1).amin(-1, keepdim=True)

    def _violation(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, " batch"]:
        return torch.stack([part._violation(obs, act) for part in self.parts], -1).amin(-1)

    def _contains(self, obs: Tensor | None, act: Float[Tensor, "batch d"], tol: float) -> Bool[Tensor, " batch"]:
        return torch.stack([part._contains(obs, act, tol) for part in self.parts], -1).any(-1)

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        return _nearest_of(self.parts, obs, act)

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        return _first_interior(self.parts, obs, act)


def _or_empty(
    answer: Callable[[Tensor | None, Tensor], Tensor], obs: Tensor | None, act: Tensor
) -> tuple[Tensor, Tensor]:
    """Points of a part, and at which states it has any; states are halved until those that are empty stand alone."""
    try:
        return answer(obs, act), torch.ones(len(act), dtype=torch.bool, device=act.device)
    except EmptySetError:
        if len(act) == 1 or obs is None:
            return clip(act, -1.0, 1.0), torch.zeros(len(act), dtype=torch.bool, device=act.device)
    half = len(act) // 2
    halves = [_or_empty(answer, obs[rows], act[rows]) for rows in (slice(half), slice(half, None))]
    return torch.cat([points for points, _ in halves]), torch.cat([there for _, there in halves])


def _nearest_of(parts: tuple[Constraint, ...], obs: Tensor | None, act: Tensor) -> Tensor:
    """The nearest of the parts' projections at each state, over the parts that are not empty there."""
    answers = [_or_empty(part._nearest, obs, act) for part in parts]
    points = torch.stack([point for point, _ in answers])
    away = (points.detach() - act.detach()).square().sum(-1)
    away = torch.where(torch.stack([there for _, there in answers]), away, torch.inf)
    nearest = away.argmin(0)
    _refuse_empty(~torch.isfinite(away.amin(0)))
    return points[nearest, torch.arange(len(act), device=act.device)]


def _first_interior(parts: tuple[Constraint, ...], obs: Tensor | None, act: Tensor) -> Tensor:
    """Interior points of the first part that has any, for each state."""
    result, missing = torch.zeros_like(act), torch.arange(len(act), device=act.device)
    for part in parts:
        points, there = _or_empty(part._inner, None if obs is None else obs[missing], act[missing])
        result[missing[there]] = points[there]
        missing = missing[~there]
        if len(missing) == 0:
            return result
    _refuse_empty(torch.isin(torch.arange(len(act), device=act.device), missing))
    return result


def _refuse_empty(empty: Tensor) -> None:
    if empty.any():
        raise EmptySetError(
            "the feasible set is empty: no alternative of the union holds an action", int(empty.nonzero()[0, 0])
        )


class Intersection(Constraint):
    """What several constraints allow at once.

    Projection: exact where one part's projection happens to satisfy the others; otherwise a convex program for convex
    parts. Unions are multiplied out. Integer sets and oracles cannot be intersected this way: the intersection then
    only answers membership.

    Args:
        parts: The constraints, on the same number of components.

    Raises:
        InvalidValueError: If there are none, their dimensions differ, or unions multiply to thousands of alternatives.
        InvalidTypeError: If one is not a constraint.

    Source:
        Beyond the paper: O+S of the omron-sinicx benchmark.
    """

    def __init__(self, parts: Any) -> None:
        parts = _listed(parts, "an intersection")
        self.action_dim = _same_dim(parts, "an intersection")
        flat: list[Constraint] = []
        for part in parts:
            flat += part.parts if isinstance(part, Intersection) else [part]
        self.parts = tuple(flat)
        self.needs_obs = any(part.needs_obs for part in parts)
        self.min_obs_dim = max(part.min_obs_dim for part in parts)
        self.convex = all(part.convex for part in self.parts)
        self.has_volume = all(part.has_volume for part in self.parts)
        self.exact_projection = len(self.parts) == 1 and self.parts[0].exact_projection
        self._alternatives: Union | None = None
        if len(self.parts) > 1 and any(isinstance(part, Union) for part in self.parts):
            choices = [part.parts if isinstance(part, Union) else (part,) for part in self.parts]
            count = math.prod(len(choice) for choice in choices)
            if count > _MAX_ALTERNATIVES:
                raise InvalidValueError(
                    f"this intersection of unions has {count:,} alternatives, too many to project onto; "
                    f"give at most {_MAX_ALTERNATIVES:,}, or an Oracle with a projection of your own"
                )
            self._alternatives = Union([Intersection(chosen) for chosen in itertools.product(*choices)])

    def _excess(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch functions"]:
        return torch.cat([part._functions(obs, act) for part in self.parts], -1)

    def _project(self, obs: Tensor | None, act: Float[Tensor, "batch d"]) -> Float[Tensor, "batch d"]:
        if len(self.parts) == 1:
            return self.parts[0]._nearest(obs, act)
        if self._alternatives is not None:
            return _nearest_of(self._alternatives.parts, obs, act)
        result = clip(act, -1.0, 1.0)
        todo = self._outside(obs, result)
        for part in self.parts:
            if len(todo) == 0:
                return result
            chosen = None if obs is None else obs[todo]
            # The nearest point of a larger set is the nearest of this one if it belongs to it; not that of a band,
            # whose projection is its middle.
            if getattr(part, "tol", 0.0) > 0:
                continue
            try:
                with renumbered(todo):
                    candidate = part._nearest(chosen, act[todo])
            except InvalidTypeError:
                continue
            left = self._outside(chosen, candidate)
            inside = torch.ones(len(todo), dtype=torch.bool, device=todo.device)
            inside[left] = False
            result = result.index_put((todo[inside],), candidate[inside])
            todo = todo[left]
        if len(todo) == 0:
            return result
        chosen = None if obs is None else obs[todo]
        pieces = self._pieces(chosen, len(todo), act)
        if pieces is None:
            raise InvalidTypeError(
                f"{self!r} has no projection: a part is an oracle or an integer set; wrap the whole in "
                "Oracle(..., project=...), or choose another fallback"
            )
        note_qp(len(todo))
        with renumbered(todo):
            solved = project_pieces(act[todo], with_box(pieces, len(todo), self.action_dim, act))
        return result.index_put((todo,), solved)

    def _outside(self, obs: Tensor | None, act: Tensor) -> Tensor:
        with torch.no_grad():
            return (~self._exactly_contains(obs, act)).nonzero()[:, 0]

    def _exactly_contains(self, obs: Tensor | None, act: Tensor) -> Tensor:
        inside = (act.abs() <= 1 + _EXACTLY).all(-1)
        for part in self.parts:
            inside &= (part._functions(obs, act) <= _EXACTLY).all(-1)
        return inside

    def _interior(self, obs: Tensor | None, act: Tensor) -> Tensor:
        if self._alternatives is not None:
            return _first_interior(self._alternatives.parts, obs, act)
        pieces = self._pieces(obs, len(act), act)
        if pieces is None:
            for part in self.parts:
                try:
                    point = part._inner(obs, act)
                except InvalidTypeError:
                    continue
                if self._contains(obs, point, 1e-9).all():
                    return point
            raise InvalidTypeError(f"{self!r} knows no interior point: a part is an oracle or an integer set")
        return deepest_point(with_box(pieces, len(act), self.action_dim, act), len(act), self.action_dim, act)

    def _pieces(self, obs: Tensor | None, batch: int, like: Tensor) -> ConvexPieces | None:
        parts = [part._pieces(obs, batch, like) for part in self.parts]
        known = [part for part in parts if part is not None]
        return merge_pieces(known, self.action_dim) if len(known) == len(parts) else None

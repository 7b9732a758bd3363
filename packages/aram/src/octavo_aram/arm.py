"""Acceptance-rejection: actions that follow the policy's law restricted to the feasible set, without a projection.

The law wanted is ``pi(a|s) 1[a in C(s)] / Z(s)``. With the envelope ``1/Z`` a draw is accepted exactly if it is
feasible: sample, test, repeat. The number of tries is geometric with mean ``1/Z(s)``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from octavo_core.errors import InvalidStateError, InvalidTypeError, InvalidValueError
from torch import Tensor

from octavo_aram.constraints._empty import renumbered
from octavo_aram.constraints._hit_and_run import uniform_walk
from octavo_aram.constraints._user import checked_count
from octavo_aram.constraints.base import Array, Batch, Constraint

__all__ = ["ArmInfo", "LowAcceptanceWarning", "arm_sample", "hit_and_run"]

_FALLBACKS = ("project", "interior", "hit_and_run", "raise")
# Moves of the fallback chain per action component: enough to forget the start on well-shaped sets.
_WALK_MOVES = 4
# Numbers in a block of candidates: 128 MiB in float64.
_LARGEST_BLOCK = 2**24


class LowAcceptanceWarning(UserWarning):
    """No candidate of a whole call was feasible: the fallback decides the actions, not the policy."""


@dataclass(frozen=True)
class ArmInfo:
    """What one call of :func:`arm_sample` did.

    Args:
        tries: Candidates tested for each state, the accepted one included.
        accepted: Whether a candidate was feasible; ``False`` means that the fallback gave the action.
        n_projections: States whose action was projected.
        rejected: Infeasible candidates before the accepted one (all of them where none was), ordered by state and draw.
        rejected_row: The state that each belongs to.
    """

    tries: Int64[np.ndarray, " states"]
    accepted: Bool[np.ndarray, " states"]
    n_projections: int
    rejected: Float[np.ndarray, "rejections d"] | Float[Tensor, "rejections d"]
    rejected_row: Int64[np.ndarray, " rejections"]

    @property
    def qp(self) -> int:
        """Projections, the QP solves of the paper's count."""
        return self.n_projections

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the candidates tested; NaN if none was."""
        tested = int(self.tries.sum())
        return float(self.accepted.sum()) / tested if tested else float("nan")


def arm_sample(
    draw: Callable[[Any, int], Any],
    obs: Array | Any,
    constraint: Constraint | Any,
    *,
    max_tries: int | Any = 100,
    batch: int | Any = 16,
    fallback: str = "project",
    constraint_obs: Array | Any = None,
    generator: torch.Generator | None = None,
    tol: float | int = 1e-6,
    warn: bool = True,
) -> tuple[Any, ArmInfo]:
    """Draw one feasible action per state.

    Candidates come in blocks, 16 and then doubling up to ``max_tries``, one call of ``draw`` a block, and only states
    without a feasible candidate stay in. The first feasible candidate in the order of the draws is taken, which keeps
    the law exact.

    Args:
        draw: ``draw(obs, n)`` maps observations [rows, obs] to ``n`` independent candidates each, [rows, n, d], in
            normalised units; array or tensor.
        obs: Observations [states, obs], or [obs] for one state, as ``draw`` wants them.
        constraint: The constraint.
        max_tries: Cap T on the candidates of a state, at least 1.
        batch: Candidates of the first block, at least 1.
        fallback: What happens after T failures: ``"project"`` the last candidate; ``"interior"``: an interior point;
            ``"hit_and_run"``: a random walk within the set from the projection, so that exploration stays random;
            ``"raise"``.
        constraint_obs: Raw observations for the constraint if ``obs`` is normalised or extended; ``obs`` by default.
        generator: Generator of the walk of ``"hit_and_run"``.
        tol: Tolerance of the membership test.
        warn: Whether to warn when no candidate of the whole call was feasible.

    Returns:
        Actions [states, d] (or [d]) of the kind that ``draw`` returns, and what was done.

    Raises:
        InvalidValueError: If an argument is out of range, ``draw`` returns another shape or values that are not finite.
        InvalidStateError: If tries run out and ``fallback`` is ``"raise"``.
        InvalidTypeError: If tries run out and the constraint cannot project, or what is given is no constraint.

    Source:
        Section 4.1, algorithm ARM, with T = 100; blocks and the walk are beyond the paper.
    """
    if not isinstance(constraint, Constraint):
        raise InvalidTypeError(
            f"constraint={constraint!r} is a {type(constraint).__name__}; give a Constraint, for a name that which "
            "make_constraint(name, env) returns"
        )
    max_tries, batch = checked_count(max_tries, "max_tries", least=1), checked_count(batch, "batch", least=1)
    # Lists of numbers are as good as arrays.
    obs = obs if isinstance(obs, Tensor | np.ndarray) else np.asarray(obs)
    if constraint_obs is not None and not isinstance(constraint_obs, Tensor | np.ndarray):
        constraint_obs = np.asarray(constraint_obs)
    if fallback not in _FALLBACKS:
        raise InvalidValueError(f"fallback={fallback!r} is not known; accepted: {', '.join(_FALLBACKS)}")
    if obs.ndim not in {1, 2}:
        raise InvalidValueError(f"observations of shape {tuple(obs.shape)}; give [obs] or [states, obs]")
    single = obs.ndim == 1
    states = obs[None] if single else obs
    raw = states
    if constraint_obs is not None:
        raw = constraint_obs[None] if constraint_obs.ndim == 1 else constraint_obs
        if constraint.needs_obs and len(raw) != len(states):
            raise InvalidValueError(f"{len(raw)} constraint_obs for {len(states)} observations; give as many")
    count, dim = len(states), constraint._checked_action_dim()
    tries = np.zeros(count, np.int64)
    accepted = np.zeros(count, bool)
    todo = np.arange(count)
    chosen: list[tuple[np.ndarray, Any]] = []
    refused: list[tuple[np.ndarray, Any]] = []
    last: Any = None
    tested, size = 0, batch
    while len(todo) and tested < max_tries:
        # Doubling stops where a block would not fit the memory.
        block = min(size, max_tries - tested, max(batch, _LARGEST_BLOCK // (len(todo) * dim)))
        rows = _rows(states, todo)
        candidates = draw(rows, block)
        if not isinstance(candidates, np.ndarray | Tensor) or tuple(candidates.shape) != (len(todo), block, dim):
            shape = getattr(candidates, "shape", type(candidates).__name__)
            raise InvalidValueError(
                f"draw returned {shape} for {len(todo)} states and {block} candidates; return an array or tensor "
                f"[{len(todo)}, {block}, {dim}]"
            )
        seen = _rows(raw, todo)[:, None] if constraint.needs_obs else None
        feasible = constraint.contains(seen, candidates, tol)
        feasible = feasible.cpu().numpy() if isinstance(feasible, Tensor) else feasible
        success = feasible.any(1)
        first = np.where(success, feasible.argmax(1), block)
        tries[todo] += np.where(success, first + 1, block)
        before = np.arange(block)[None] < first[:, None]
        if before.any():
            row, index = before.nonzero()
            refused.append((todo[row], _pick(candidates, row, index, detach=True)))
        winners = success.nonzero()[0]
        if len(winners):
            chosen.append((todo[winners], _pick(candidates, winners, first[winners])))
            accepted[todo[winners]] = True
        losers = (~success).nonzero()[0]
        last = _pick(candidates, losers, np.full(len(losers), block - 1))
        todo = todo[losers]
        tested, size = tested + block, size * 2
    n_projections = 0
    if len(todo):
        if warn and not accepted.any():
            warnings.warn(
                f"none of {max_tries} candidates was feasible at any of {count} states: the fallback {fallback!r} "
                "decides the actions; if this goes on, raise max_tries, start from a policy nearer to the set, or "
                "choose the fallback 'hit_and_run'",
                LowAcceptanceWarning,
                stacklevel=2,
            )
        seen = _rows(raw, todo) if constraint.needs_obs else None
        with renumbered(todo):
            replaced, n_projections = _fall_back(constraint, seen, last, fallback, generator, max_tries)
        chosen.append((todo, replaced))
    action = _assemble(chosen, count, dim, states)
    rejected, rejected_row = _sorted_rejections(refused, dim, action)
    return action[0] if single else action, ArmInfo(tries, accepted, n_projections, rejected, rejected_row)


def hit_and_run(
    constraint: Constraint,
    obs: Array | None,
    start: Array,
    *,
    steps: int | Any = None,
    generator: torch.Generator | None = None,
) -> Any:
    """Walk at random within C(s) from feasible points; the law tends to the uniform one on C(s).

    Args:
        constraint: The constraint.
        obs: Raw observations [obs] or [batch, obs]; ``None`` if not needed.
        start: Feasible actions [d] or [batch, d].
        steps: Moves, 4 per action component by default.
        generator: Generator of the draws.

    Returns:
        Feasible actions of the shape and kind of ``start``.

    Raises:
        InvalidValueError: If a start is not feasible or ``steps`` is negative.
        InvalidTypeError: If ``steps`` is not whole.

    Source:
        Beyond the paper: keeps exploration random where acceptance is too rare (NSFnet).
    """
    moves = _WALK_MOVES * constraint._checked_action_dim() if steps is None else checked_count(steps, "steps")
    data = Batch.of(constraint, obs, start)
    with torch.no_grad():
        if not constraint._contains(data.obs, data.act, 1e-6).all():
            raise InvalidValueError("the walk must start at feasible actions; project them first")
        walked = uniform_walk(constraint, data.obs, data.act, moves, generator)
        return data.shaped(constraint._rounded(data, walked))


def _fall_back(
    constraint: Constraint, obs: Any, last: Any, fallback: str, generator: torch.Generator | None, max_tries: int
) -> tuple[Any, int]:
    """Actions for the states whose tries ran out, and how many were projected."""
    if fallback == "raise":
        raise InvalidStateError(
            f"none of {max_tries} candidates was feasible at {len(last)} states; raise max_tries or choose another "
            "fallback"
        )
    if fallback == "interior":
        return _interior_like(constraint, obs, last), 0
    projected = True
    try:
        action = constraint.project(obs, last)
    except InvalidTypeError:
        if fallback == "project":
            raise
        action, projected = _interior_like(constraint, obs, last), False
    if fallback == "hit_and_run":
        action = hit_and_run(constraint, obs, action, generator=generator)
    return action, len(last) if projected else 0


def _interior_like(constraint: Constraint, obs: Any, like: Any) -> Any:
    points = constraint.interior(obs)
    if isinstance(like, Tensor):
        return torch.as_tensor(points).to(like).expand(like.shape).clone()
    points = points.detach().cpu().numpy() if isinstance(points, Tensor) else points
    return np.broadcast_to(points, like.shape).astype(like.dtype)


def _rows(values: Any, index: np.ndarray) -> Any:
    if len(index) == len(values):
        return values
    return values[torch.as_tensor(index, device=values.device)] if isinstance(values, Tensor) else values[index]


def _pick(candidates: Any, row: np.ndarray, index: np.ndarray, *, detach: bool = False) -> Any:
    if isinstance(candidates, Tensor):
        values = candidates.detach() if detach else candidates
        return values[torch.as_tensor(row, device=values.device), torch.as_tensor(index, device=values.device)]
    return candidates[row, index]


def _assemble(chosen: list[tuple[np.ndarray, Any]], count: int, dim: int, like: Any) -> Any:
    if not chosen:
        floating = like if isinstance(like, Tensor) else np.empty(0, np.float64)
        return floating.new_zeros(0, dim) if isinstance(floating, Tensor) else np.zeros((0, dim))
    order = np.argsort(np.concatenate([rows for rows, _ in chosen]), kind="stable")
    if isinstance(chosen[0][1], Tensor):
        values = torch.cat([part for _, part in chosen])
        return values[torch.as_tensor(order, device=values.device)]
    return np.concatenate([part for _, part in chosen])[order]


def _sorted_rejections(refused: list[tuple[np.ndarray, Any]], dim: int, like: Any) -> tuple[Any, np.ndarray]:
    if not refused:
        empty = like.detach().new_zeros(0, dim) if isinstance(like, Tensor) else np.zeros((0, dim), like.dtype)
        return empty, np.zeros(0, np.int64)
    rows = np.concatenate([row for row, _ in refused]).astype(np.int64)
    order = np.argsort(rows, kind="stable")
    return _assemble(refused, 0, dim, like), rows[order]
